"""Models on disk: a json document that says what is saved, and arrays beside it as safetensors; never pickle."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.files import locked, write_json, write_whole, writing
from wmrl_gym.world_models.base import WorldModelError

_STAMP = "stamp"
"""The same in a document and in the arrays that belong to it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How models of a class are saved in a folder.

    A stamp in both files says which belong together. The arrays are first written beside the older ones, and take their place
    when the document has taken the older one's: whenever a save is killed, the folder holds the older model whole, or the newer.

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
        """Save below ``folder``, which is made where it is missing.

        Raises:
            CannotWrite: the folder cannot be written; what was there is whole.
        """
        contiguous = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
        whole: dict[str, Any] = {"model": self.model, "format": self.format, **document}
        whole[_STAMP] = _stamp(whole, contiguous)
        with writing(folder, advice="make room there, or save into another folder"), locked(folder):
            if not self.arrays:
                write_json(folder / self.document, whole)
                return
            from safetensors.numpy import save_file

            for left_over in folder.glob(self._beside("*")):
                left_over.unlink(missing_ok=True)
            beside, metadata = folder / self._beside(whole[_STAMP]), {_STAMP: whole[_STAMP]}
            write_whole(beside, lambda part: save_file(contiguous, str(part), metadata=metadata))
            write_json(folder / self.document, whole)
            beside.replace(folder / self.arrays)

    @contextmanager
    def reading(self, folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
        """The document and the arrays; what the block fails to find in them is said to be damaged.

        Raises:
            WorldModelError: the folder holds no such model, or one of another form, or a damaged one.
        """
        from safetensors import SafetensorError

        try:
            document, arrays = self._read(folder)
            yield document, arrays
        except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise WorldModelError(f"the {self.model} saved in {folder} is damaged: {error!r}") from error

    def _read(self, folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        for _ in range(20):  # somebody may save between the reading of the two files
            if not (folder / self.document).is_file():
                raise WorldModelError(f"no {self.model} is saved in {folder}: {self.document} is missing")
            document = json.loads((folder / self.document).read_text(encoding="utf-8"))
            found, wanted = f"{document['model']} of format {document['format']}", f"{self.model} of format {self.format}"
            if found != wanted:
                raise WorldModelError(f"{folder / self.document} holds {found}, expected {wanted}")
            arrays = self._read_arrays(folder, document.get(_STAMP)) if self.arrays else {}
            if arrays is not None:
                return document, arrays
            time.sleep(0.05)
        if not (folder / self.arrays).is_file():
            raise WorldModelError(f"no {self.model} is saved in {folder}: {self.arrays} is missing")
        raise WorldModelError(
            f"{self.document} and {self.arrays} in {folder} are of two different {self.model}s: copy both again"
        )

    def _read_arrays(self, folder: Path, stamp: str | None) -> dict[str, NDArray[Any]] | None:
        """The arrays that belong to a document with this stamp; None where they are not there, or others are."""
        from safetensors import safe_open

        for name in (self._beside(stamp), self.arrays) if stamp else (self.arrays,):
            try:
                with safe_open(str(folder / name), framework="numpy") as file:
                    # Version 0.1 wrote no stamps.
                    if stamp is None or (file.metadata() or {}).get(_STAMP) == stamp:
                        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            except FileNotFoundError:
                continue
        return None

    def _beside(self, stamp: str) -> str:
        """Name of the arrays of a save that is not finished."""
        stem, dot, suffix = self.arrays.partition(".")
        return f"{stem}-{stamp}{dot}{suffix}"


def _stamp(document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """The same for the same content, so that saving it twice writes the same bytes."""
    digest = hashlib.blake2b(json.dumps(document).encode(), digest_size=8)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
