"""What an ensemble has learnt, on disk: safetensors and json, never pickle."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from wmrl_gym.world_models.base import DataSpan
from wmrl_gym.world_models.dynamics.ensemble import EnsembleMLP, Scale
from wmrl_gym.world_models.dynamics.prediction import Bounds, FittedEnsemble, Scales
from wmrl_gym.world_models.dynamics.vectors import Experience
from wmrl_gym.world_models.ranges import check_positive, check_whole
from wmrl_gym.world_models.storage import Layout
from wmrl_gym.world_models.torch_state import learning

LAYOUT = Layout("EnsembleDynamics", 1, "dynamics.json", "dynamics.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a checkpoint of an ensemble holds.

    Args:
        settings: its constructor's arguments.
        spaces: the observation and action space that it was trained in, as text; None before it was given anything.
        contexts: names of the contexts of a factored environment, by their numbers; () for other environments.
        added: transitions ever given: it was trained on the last ``len(kept)`` of them.
        learnt: of these, how many the fit has seen.
        kept: the transitions that are kept.
        fitted: the fit.
    """

    settings: dict[str, Any]
    spaces: tuple[str, str] | None
    contexts: tuple[str, ...]
    added: int
    learnt: int
    kept: Experience | None
    fitted: FittedEnsemble | None

    def write(self, folder: Path, *, trained_on: DataSpan) -> None:
        """Write it below ``folder``, which is made where it is missing, with what the fit was trained on for whoever reads it."""
        document: dict[str, Any] = {
            "settings": self.settings,
            "spaces": self.spaces,
            "contexts": self.contexts,
            "added": self.added,
            "learnt": self.learnt,
        }
        document["trained_on"] = trained_on.as_json()
        arrays: dict[str, NDArray[Any]] = {}
        if self.kept is not None:
            arrays |= {f"replay.{field.name}": getattr(self.kept, field.name) for field in fields(Experience)}
        if self.fitted is not None:
            arrays |= _fit_arrays(self.fitted)
            bounds = self.fitted.bounds
            document["fit"] = {
                "elites": list(self.fitted.elites),
                "reward_factor": self.fitted.reward_factor,
                "reward_low": bounds.reward_low,
                "reward_high": bounds.reward_high,
                "ends": bounds.ends,
            }
        LAYOUT.write(folder, document, arrays)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Read what :meth:`write` wrote.

        Raises:
            WorldModelError: ``folder`` holds no such checkpoint.
        """
        with LAYOUT.reading(folder) as (document, arrays):
            kept = _experience_of(arrays) if "replay.reward" in arrays else None
            fitted = _fit_of(arrays, document["fit"]) if "fit" in document else None
            spaces = None if document["spaces"] is None else (document["spaces"][0], document["spaces"][1])
            contexts = tuple(document["contexts"])
            saved = cls(dict(document["settings"]), spaces, contexts, document["added"], document["learnt"], kept, fitted)
            saved.check()
            return saved

    def check(self) -> None:
        """Check that the parts belong together, which they need not in a document that was changed by hand.

        Raises:
            ValueError, TypeError: they do not.
        """
        members = self.settings["n_members"]
        check_whole("added", self.added, least=0 if self.kept is None else len(self.kept.reward))
        check_whole("learnt", self.learnt, least=0)
        if self.learnt > self.added:
            raise ValueError(f"learnt is {self.learnt}, more than the {self.added} that were added")
        if self.kept is not None and self.kept.counts.shape != (len(self.kept.reward), members):
            raise ValueError(f"n_members is {members!r}, and the kept transitions are of {self.kept.counts.shape[1]}")
        if self.fitted is not None:
            there = self.fitted.transition.n_members
            for elite in self.fitted.elites:
                check_whole("each elite", elite, least=0)
            if there != members or not self.fitted.elites or max(self.fitted.elites) >= there:
                raise ValueError(f"n_members is {members!r} and the elites {self.fitted.elites}, of {there} networks")
            for name in ("reward_low", "reward_high", "ends"):
                if not isinstance(getattr(self.fitted.bounds, name), (bool, float, int)):
                    raise TypeError(f"{name} must be a number, got {getattr(self.fitted.bounds, name)!r}")
            check_positive("reward_factor", self.fitted.reward_factor)


def _experience_of(arrays: dict[str, NDArray[Any]]) -> Experience:
    return Experience(**{field.name: arrays[f"replay.{field.name}"] for field in fields(Experience)})


def _fit_arrays(fitted: FittedEnsemble) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {"seen.low": fitted.bounds.low, "seen.high": fitted.bounds.high}
    for name in ("transition", "outcome"):
        network: EnsembleMLP = getattr(fitted, name)
        arrays |= {f"{name}.weight.{i}": weight.numpy() for i, weight in enumerate(network.weights)}
        arrays |= {f"{name}.bias.{i}": bias.numpy() for i, bias in enumerate(network.biases)}
    for field in fields(Scales):
        scale: Scale = getattr(fitted.scales, field.name)
        arrays |= {f"scale.{field.name}.mean": scale.mean, f"scale.{field.name}.std": scale.std}
    return arrays


@learning()
def _fit_of(arrays: dict[str, NDArray[Any]], document: dict[str, Any]) -> FittedEnsemble:
    networks = []
    for name in ("transition", "outcome"):
        layers = range(sum(key.startswith(f"{name}.weight.") for key in arrays))
        parts = [tuple(torch.from_numpy(arrays[f"{name}.{kind}.{i}"]) for i in layers) for kind in ("weight", "bias")]
        networks.append(EnsembleMLP(*parts))
    names = [field.name for field in fields(Scales)]
    scales = Scales(**{name: Scale(arrays[f"scale.{name}.mean"], arrays[f"scale.{name}.std"]) for name in names})
    rewards = [document[key] for key in ("reward_low", "reward_high", "ends")]
    bounds = Bounds(arrays["seen.low"], arrays["seen.high"], *rewards)
    return FittedEnsemble(networks[0], networks[1], scales, bounds, tuple(document["elites"]), document["reward_factor"])
