"""Episodes as a LeRobot data set, format v3.0: parquet tables with images inside, and metadata beside them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

from wmrl_gym.data.demonstrations import Episode, EpisodeFolder
from wmrl_gym.files import OUT, folder_made_anew, writing

CODEBASE_VERSION = "v3.0"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
CHUNK_FILES, FILE_MB = 1000, 100

_INDICES = {
    name: {"dtype": "int64", "shape": [1], "names": None} for name in ("frame_index", "episode_index", "index", "task_index")
}


def write_lerobot(
    episodes: EpisodeFolder, out: str | Path, *, robot_type: str = "unknown", progress: Callable[[int], None] = lambda done: None
) -> Path:
    """Write every episode of a folder as a LeRobot data set, failed ones included.

    Images stay images (``dtype: "image"``, PNG inside the tables), so that nothing is lost. Each frame says ``next.reward``,
    ``next.done`` and ``next.success``, and each row of ``meta/episodes`` has a column ``success`` beside LeRobot's own.

    Args:
        episodes: to write.
        out: a folder that is made anew: a data set that is there is replaced when the new one is whole.
        robot_type: its name in ``meta/info.json``.
        progress: told after each episode how many are done.

    Returns:
        ``out``.

    Raises:
        DependencyNotInstalled: pyarrow or Pillow is missing.
        ValueError: there are no episodes, or ``out`` holds something else.
    """
    _require()
    root = Path(out)
    if root.exists() and any(root.iterdir()) and not (root / "meta" / "info.json").is_file():
        raise ValueError(f"{root} holds something that is no LeRobot data set: choose another folder")
    if not len(episodes):
        raise ValueError(f"there are no episodes in {episodes.path}")
    with writing(root, advice=OUT), folder_made_anew(root) as part:
        writer = _Writer(part, fps=episodes.collection.frames_per_second)
        for number, episode in enumerate(episodes):
            writer.add(episode)
            progress(number + 1)
        writer.finish(robot_type=robot_type)
    return root


@dataclass(slots=True)
class _Writer:
    """Writes episodes one after the other."""

    root: Path
    fps: int
    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    frames: int = 0
    file: int = 0
    bytes_in_file: int = 0
    table: Any = None
    totals: dict[str, _Moments] = field(default_factory=dict)

    def add(self, episode: Episode) -> None:
        columns = _columns(episode)
        features = {name: _feature(name, values) for name, values in columns.items()}
        if self.features and features != self.features:
            raise ValueError(f"all episodes of a data set must have the same features, got {features} after {self.features}")
        self.features = features
        sentence = episode.instruction or episode.task or "do the task"
        task = self.tasks.setdefault(sentence, len(self.tasks))
        number, length = len(self.rows), len(episode)
        columns |= {
            "timestamp": (np.arange(length) / self.fps).astype(np.float32),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, number),
            "index": np.arange(self.frames, self.frames + length),
            "task_index": np.full(length, task),
        }
        at = self._write(columns)
        row: dict[str, Any] = {"episode_index": number, "tasks": [sentence], "length": length, "success": episode.success}
        row |= {"data/chunk_index": at // CHUNK_FILES, "data/file_index": at % CHUNK_FILES}
        row |= {"dataset_from_index": self.frames, "dataset_to_index": self.frames + length}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        for name, values in columns.items():
            moments = _Moments.of(values)
            self.totals[name] = moments if name not in self.totals else self.totals[name].with_(moments)
            row |= {f"stats/{name}/{statistic}": value for statistic, value in moments.described().items()}
        self.rows.append(row)
        self.frames += length

    def finish(self, *, robot_type: str) -> None:
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._close()
        path = self.root / EPISODES_PATH.format(chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self.rows), path)
        index = pd.Index(list(self.tasks), name="task")
        pd.DataFrame({"task_index": list(self.tasks.values())}, index=index).to_parquet(self.root / "meta" / "tasks.parquet")
        features = {**self.features, "timestamp": {"dtype": "float32", "shape": [1], "names": None}, **_INDICES}
        info = {
            "codebase_version": CODEBASE_VERSION,
            "robot_type": robot_type,
            "total_episodes": len(self.rows),
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": CHUNK_FILES,
            "data_files_size_in_mb": FILE_MB,
            "video_files_size_in_mb": 500,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self.rows)}"},
            "data_path": DATA_PATH,
            "video_path": None,
            "features": features,
        }
        stats = {name: moments.described() for name, moments in self.totals.items()}
        for name, document in (("info", info), ("stats", stats)):
            (self.root / "meta" / f"{name}.json").write_text(json.dumps(document, indent=4), encoding="utf-8")

    def _write(self, columns: dict[str, NDArray[Any]]) -> int:
        """Append one episode to the present file; returns the file's number."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({name: _arrow(values) for name, values in columns.items()})
        if self.table is not None and self.bytes_in_file + table.nbytes > FILE_MB * 2**20:
            self._close()
            self.file += 1
        if self.table is None:
            path = self.root / DATA_PATH.format(chunk_index=self.file // CHUNK_FILES, file_index=self.file % CHUNK_FILES)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table, self.bytes_in_file = pq.ParquetWriter(path, table.schema), 0
        self.table.write_table(table)
        self.bytes_in_file += table.nbytes
        return self.file

    def _close(self) -> None:
        if self.table is not None:
            self.table.close()
        self.table = None


@dataclass(frozen=True, slots=True)
class _Moments:
    """Statistics of a feature that can be added up; images channel by channel, in [0, 1]."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    total: NDArray[np.float64]
    squares: NDArray[np.float64]
    samples: int
    count: int
    image: bool

    @classmethod
    def of(cls, values: NDArray[Any]) -> _Moments:
        image = _is_image(values)
        rows = values.reshape(-1, 3) / 255.0 if image else values.reshape(len(values), -1)
        rows = rows.astype(np.float64)
        return cls(rows.min(0), rows.max(0), rows.sum(0), (rows**2).sum(0), len(rows), len(values), image)

    def with_(self, other: _Moments) -> _Moments:
        return _Moments(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.total + other.total,
            self.squares + other.squares,
            self.samples + other.samples,
            self.count + other.count,
            self.image,
        )

    def described(self) -> dict[str, Any]:
        mean = self.total / self.samples
        std = np.sqrt(np.maximum(self.squares / self.samples - mean**2, 0.0))
        parts = {"min": self.low, "max": self.high, "mean": mean, "std": std}
        shaped = {name: (value[:, None, None] if self.image else value).tolist() for name, value in parts.items()}
        return {**shaped, "count": [self.count]}


def _columns(episode: Episode) -> dict[str, NDArray[Any]]:
    """The features of each frame, by LeRobot's names: what was seen, what was done, and what came of it."""
    length = len(episode)
    columns: dict[str, NDArray[Any]] = {}
    for path, values in _leaves(episode.observation):
        if values.dtype.kind in "US":
            continue  # the sentence is the task
        place = "images." if _is_image(values) else ""
        columns[f"observation.{place}{'.'.join(path) or 'state'}"] = values[:length]
    columns["action"] = episode.action if episode.action.ndim > 1 else episode.action[:, None]
    columns["next.reward"] = episode.reward.astype(np.float32)
    columns["next.done"] = np.arange(length) == length - 1
    columns["next.success"] = columns["next.done"] & episode.success
    return columns


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], NDArray[Any]]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    else:
        yield path, np.asarray(value)


def _feature(name: str, values: NDArray[Any]) -> dict[str, Any]:
    if _is_image(values):
        return {"dtype": "image", "shape": list(values.shape[1:]), "names": ["height", "width", "channels"]}
    shape = list(values.shape[1:]) or [1]
    names = [f"{name.rpartition('.')[2]}_{i}" for i in range(shape[0])] if len(shape) == 1 and shape != [1] else None
    return {"dtype": str(values.dtype), "shape": shape, "names": names}


def _arrow(values: NDArray[Any]) -> Any:
    import pyarrow as pa

    if _is_image(values):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.array([{"bytes": _png(image), "path": f"frame-{i:06d}.png"} for i, image in enumerate(values)], kind)
    if values.ndim == 1 or values.shape[1:] == (1,):
        return pa.array(values.reshape(-1))
    if values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    nested = pa.array(values.reshape(-1))  # LeRobot reads more axes than one as lists in lists
    for axis in range(values.ndim - 1, 0, -1):
        nested = pa.ListArray.from_arrays(np.arange(0, len(nested) + 1, values.shape[axis], dtype=np.int32), nested)
    return nested


def _png(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def _is_image(values: NDArray[Any]) -> bool:
    return values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] == 3


def _require() -> None:
    missing = [package for package, module in (("pyarrow", "pyarrow"), ("Pillow", "PIL")) if find_spec(module) is None]
    if missing:
        raise DependencyNotInstalled(f"{' and '.join(missing)} not installed, run `pip install 'wmrl-gym[lerobot]'`")
