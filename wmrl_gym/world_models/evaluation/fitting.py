"""Fitting a world model to recorded episodes, in pieces, so that a fit goes on where it stopped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from wmrl_gym.data.minari import MinariEpisodes
from wmrl_gym.files import write_json
from wmrl_gym.world_models.base import Interface, WorldModel, WorldModelError
from wmrl_gym.world_models.loading import MODELS, load_model, new_model
from wmrl_gym.world_models.ranges import check_whole

_DOCUMENT = "fit.json"
_KINDS = {"plan": dict, "episodes": int, "held_out": list, "done": int, "measures": dict, "checkpoint": str, "rng": dict}
"""What the document of a fit holds."""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """What to fit to what.

    Args:
        dataset: a Minari data set's folder, or its id.
        model: its kind, see :data:`~wmrl_gym.world_models.loading.MODELS`.
        settings: arguments of the model, see :func:`~wmrl_gym.world_models.loading.new_model`. They are saved.
        held_out: share of the episodes that the model never sees, in [0, 1).
        chunk: transitions in one update of the model, at least; it is saved after each.
        seed: of the model's training and of the choice of held-out episodes.

    Raises:
        ValueError: an argument out of range.
        TypeError: an argument of another type.
    """

    dataset: str
    model: str = "dynamics"
    settings: dict[str, Any] = field(default_factory=dict)
    held_out: float = 0.1
    chunk: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the kind and each number."""
        if self.model not in MODELS:
            raise ValueError(f"the model must be one of {', '.join(MODELS)}, got {self.model!r}")
        if not isinstance(self.dataset, str) or not isinstance(self.settings, dict):
            raise TypeError(f"dataset must be a text and settings a dict, got {self.dataset!r} and {self.settings!r}")
        if isinstance(self.held_out, bool) or not isinstance(self.held_out, (int, float)):
            raise TypeError(f"held_out must be a number, got {self.held_out!r}")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out must lie in [0, 1), got {self.held_out}")
        check_whole("chunk", self.chunk, least=1)
        check_whole("seed", self.seed, least=0)


class OfflineFit:
    """A fit in a folder: its plan, how far it is, and the model so far.

    Args:
        plan: what to do.
        episodes: the plan's data set.
        interface: of the environment that the episodes are of.
        folder: made where it is missing; a fit of the same plan that is there goes on.

    Raises:
        ValueError: the folder holds another fit, or no episode is left to train on.
    """

    def __init__(self, plan: FitPlan, episodes: MinariEpisodes, *, interface: Interface, folder: str | Path) -> None:
        self.plan, self.episodes, self.folder = plan, episodes, Path(folder)
        self.held_out = _held_out(len(episodes), plan)
        self.training = [number for number in range(len(episodes)) if number not in set(self.held_out)]
        if not self.training:
            raise ValueError(f"{plan.dataset} has {len(episodes)} episodes, and none is left to train on")
        self.rng = np.random.default_rng(plan.seed)
        self.done = 0
        """Training episodes that the model has learnt from."""
        self.measures: dict[str, float] = {}
        self._checkpoint = ""
        self.model: WorldModel
        found = read_fit(self.folder)
        if found is None:
            self.model = new_model(plan.model, **plan.settings)
        else:
            self._resume(found)
        self.model.bind(interface)
        if type(self.model).remember is not WorldModel.remember:
            for number in self.training[: self.done]:
                self.model.remember(self.episodes.read(number))

    def run(self, progress: Callable[[int, dict[str, float]], None] = lambda done, measures: None) -> dict[str, float]:
        """Learn from all episodes that are left, saving after each chunk.

        Args:
            progress: called after each chunk with how many episodes are done, and the model's measures.

        Returns:
            The model's measures after the last chunk.

        Raises:
            WorldModelError: the episodes are too few for the model.
        """
        while self.done < len(self.training):
            chunk, steps, first = [], 0, self.done
            while self.done < len(self.training) and steps < self.plan.chunk:
                chunk.append(self.training[self.done])
                self.done += 1
                steps += len(self.episodes.read(chunk[-1]))
            self.measures = self.model.update(self.episodes.read_many(chunk), self.rng)
            self._save()
            progress(self.done - first, self.measures)
        if not self.model.fitted:
            data = f"{len(self.training)} episodes of {self.plan.dataset}"
            raise WorldModelError(f"{data} are too few for {type(self.model).__name__}: collect more, or lower what it asks for")
        return self.measures

    def _resume(self, found: dict[str, Any]) -> None:
        plan = json.loads(json.dumps(asdict(self.plan)))
        differing = [f"{key}: {found['plan'][key]!r}, not {plan[key]!r}" for key in plan if found["plan"][key] != plan[key]]
        if found["episodes"] != len(self.episodes):
            differing.append(f"episodes: {found['episodes']}, not {len(self.episodes)}")
        if differing:
            raise ValueError(f"{self.folder} holds another fit ({', '.join(differing)}): choose another folder")
        self.done, self.measures, self._checkpoint = found["done"], found["measures"], found["checkpoint"]
        try:
            self.rng.bit_generator.state = found["rng"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.folder / _DOCUMENT} holds no state of a random generator: choose another folder") from error
        self.model = load_model(self.folder / self._checkpoint)

    def _save(self) -> None:
        """The document names the checkpoint, so that both change at once."""
        before, self._checkpoint = self._checkpoint, f"model-{self.done}"
        self.model.save(self.folder / self._checkpoint)
        document = {
            "plan": asdict(self.plan),
            "episodes": len(self.episodes),
            "held_out": self.held_out,
            "done": self.done,
            "measures": self.measures,
            "checkpoint": self._checkpoint,
            "rng": self.rng.bit_generator.state,
        }
        write_json(self.folder / _DOCUMENT, document)
        if before and before != self._checkpoint:
            shutil.rmtree(self.folder / before, ignore_errors=True)


def read_fit(folder: str | Path) -> dict[str, Any] | None:
    """The document of the fit in ``folder``: its plan, ``held_out`` episodes, and the ``checkpoint``'s name; None without one.

    Raises:
        ValueError: the document is damaged, or somebody else's.
    """
    path = Path(folder) / _DOCUMENT
    if not path.is_file():
        return None
    told = "is not the document of a fit, or is damaged: choose another folder, or get it again"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} {told} ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in _KINDS.items()):
        raise ValueError(f"{path} {told}")
    try:
        _check(found)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} {told} ({error})") from error
    return found


def _check(found: dict[str, Any]) -> None:
    """Check what a document of a fit says, beyond the types of its parts.

    Raises:
        ValueError, TypeError: something in it cannot be.
    """
    names = {each.name for each in fields(FitPlan)}
    if not found["plan"].keys() >= names:
        raise ValueError(f"its plan lacks {', '.join(sorted(names - found['plan'].keys()))}")
    FitPlan(**{name: found["plan"][name] for name in names})
    check_whole("episodes", found["episodes"], least=1)
    for number in found["held_out"]:
        check_whole("each held-out episode", number, least=0)
    if len(set(found["held_out"])) < len(found["held_out"]) or max(found["held_out"], default=0) >= found["episodes"]:
        raise ValueError(f"held_out must be different episodes of {found['episodes']}, got {found['held_out']}")
    check_whole("done", found["done"], least=0)
    if found["done"] > found["episodes"] - len(found["held_out"]):
        raise ValueError(f"done is {found['done']}, more than the episodes that are not held out")
    if found["checkpoint"] != Path(found["checkpoint"]).name or found["checkpoint"] in ("", ".", ".."):
        raise ValueError(f"checkpoint must be the name of a folder in it, got {found['checkpoint']!r}")
    for name, value in found["measures"].items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"the measure {name!r} must be a number, got {value!r}")


def recorded(dataset: str | Path, model: str) -> tuple[MinariEpisodes, Interface]:
    """The episodes of a data set as a model of this kind needs them, and the interface of their environment.

    A model of outcomes needs the environment's own bookkeeping, so that the environment must be installed; others need the data
    set alone.

    Args:
        dataset: its folder, or its id.
        model: a kind in :data:`~wmrl_gym.world_models.loading.MODELS`.

    Raises:
        ValueError: a model of outcomes is wanted, and the environment is not factored.
    """
    episodes = MinariEpisodes(dataset)
    if not MODELS[model].factored:
        return episodes, Interface(episodes.observation_space, episodes.action_space)
    env = episodes.make_env()
    factored = getattr(env.unwrapped, "factored", None)
    if factored is None:
        raise ValueError(f"{MODELS[model].model} needs a factored environment, and {dataset} is of {env}: fit a dynamics model")
    interface = Interface(env.observation_space, env.action_space, factored.reward_range, factored)
    return MinariEpisodes(dataset, factored=factored), interface


def _held_out(n: int, plan: FitPlan) -> list[int]:
    """At least one episode, where there are two and a share is to be held out."""
    count = min(n - 1, max(1, round(plan.held_out * n))) if plan.held_out > 0 and n > 1 else 0
    chosen = np.random.default_rng([plan.seed, 1]).choice(n, count, replace=False)
    return sorted(int(number) for number in chosen)
