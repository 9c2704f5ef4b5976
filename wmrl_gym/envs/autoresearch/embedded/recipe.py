"""How an embedded task is cut from its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wmrl_gym.envs.autoresearch.tasks.format import Kind, Spec
from wmrl_gym.envs.autoresearch.tasks.metrics import metric

ID = "id"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an embedded task is cut from its source.

    Args:
        spec: what goes into ``task.toml``.
        about: what the rows and columns are, for ``description.md``.
        train_rows: how many rows go into ``train.csv``.
        test_rows: at most how many go into ``test.csv``.
    """

    spec: Spec
    about: str
    train_rows: int
    test_rows: int


def recipe(
    name: str,
    title: str,
    *,
    measure: str,
    kind: Kind,
    target: str,
    labels: Sequence[str] = (),
    modality: str = "tabular",
    text_column: str = "",
    rows: tuple[int, int],
    source: str,
    licence: str,
    about: str,
) -> Recipe:
    """A recipe, with the bounds that all embedded tasks have."""
    spec = Spec(
        name=name,
        title=title,
        metric=metric(measure),
        id_column=ID,
        target=target,
        kind=kind,
        labels=tuple(labels),
        modality=modality,
        source=source,
        licence=licence,
        text_column=text_column,
        limits={"wall_s": 30, "cpu_s": 30, "memory_mb": 2048},
    )
    return Recipe(spec, about, *rows)
