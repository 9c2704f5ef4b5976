"""Weights from a gguf file, as a folder that loads quickly and that a server can serve."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any


def unpack_gguf(source: str | Path, folder: str | Path) -> Path:
    """Write a gguf file's model and tokenizer into a folder, as safetensors and json, unless it is there already.

    ``transformers`` reads gguf slowly, and cannot save what it has read; from the folder the same weights load in seconds.

    Args:
        source: the gguf file.
        folder: the new folder; it appears whole or not at all.

    Returns:
        ``folder``.

    Raises:
        FileNotFoundError: there is no such file.
    """
    source, folder = Path(source), Path(folder)
    if (folder / "config.json").is_file():
        return folder
    if not source.is_file():
        raise FileNotFoundError(f"no gguf file at {source}")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    model = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=torch.bfloat16, **read)
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), **read)
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = type(model)(config).to(torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as new:
        whole = Path(new) / "weights"
        fresh.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        try:
            whole.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # another process was first
                raise
            shutil.rmtree(whole)
    return folder
