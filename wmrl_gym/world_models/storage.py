"""Models on disk: a json document that says what is saved, and arrays beside it as safetensors; never pickle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.world_models.base import WorldModelError


@dataclass(frozen=True, slots=True)
class Layout:
    """How models of a class are saved in a folder.

    Args:
        model: name of the class.
        format: number of the documents' form; one of another form is refused.
        document: name of the json file.
        arrays: name of the safetensors file; "" where there is none.
    """

    model: str
    format: int
    document: str
    arrays: str = ""

    def write(self, folder: Path, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Save below ``folder``, which is made where it is missing. Each file is there whole, or as it was before."""
        folder.mkdir(parents=True, exist_ok=True)
        if self.arrays:
            from safetensors.numpy import save_file

            whole = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
            write_whole(folder / self.arrays, lambda part: save_file(whole, str(part)))
        text = json.dumps({"model": self.model, "format": self.format, **document})
        write_whole(folder / self.document, lambda part: part.write_text(text, encoding="utf-8"))

    @contextmanager
    def reading(self, folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
        """The document and the arrays; what the block fails to find in them is said to be damaged.

        Raises:
            WorldModelError: the folder holds no such model, or one of another form, or a damaged one.
        """
        for name in filter(None, (self.document, self.arrays)):
            if not (folder / name).is_file():
                raise WorldModelError(f"no {self.model} is saved in {folder}: {name} is missing")
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            document = json.loads((folder / self.document).read_text(encoding="utf-8"))
            found, wanted = f"{document['model']} of format {document['format']}", f"{self.model} of format {self.format}"
            if found != wanted:
                raise WorldModelError(f"{folder / self.document} holds {found}, expected {wanted}")
            yield document, load_file(str(folder / self.arrays)) if self.arrays else {}
        except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise WorldModelError(f"the {self.model} saved in {folder} is damaged: {error!r}") from error


def write_whole(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file beside ``path``, which takes its place when it is complete."""
    part = path.with_name(f"{path.name}.part")
    write(part)
    part.replace(path)
