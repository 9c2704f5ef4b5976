"""Modules of version 0.1 under the names that they had then: they import as before, with a ``DeprecationWarning``."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_AUTORESEARCH = {
    "logic": "base",
    "progress": "rules",
    "task": "tasks.format",
    **{name: f"tasks.{name}" for name in ("grading", "external", "metric_process", "peers", "profile")},
    **{name: "tasks.scores" for name in ("metrics", "leaderboard")},
    **{name: "tasks.authoring" for name in ("validation", "scaffold")},
    **{name: f"embedded.{name}" for name in ("catalogue", "recipes", "sources", "tables")},
    **{name: "embedded.recipes" for name in ("recipe", "more_recipes")},
    "more_sources": "embedded.sources",
    **{f"design_{name}": f"design.{name}" for name in ("space", "models", "code")},
    "static_features": "static.features",
    "static_checks": "static.checks",
    "script_facts": "static.facts",
}
_WORLD_MODELS = {
    "checkpoints": "storage",
    "forest": "outcome.forests",
    "encoders": "outcome.encoders",
    "outcome_checkpoint": "outcome.checkpoint",
    "outcome_fit": "outcome.forests",
    "dynamics_checkpoint": "dynamics.checkpoint",
    "dynamics_codec": "dynamics.vectors",
    **dict.fromkeys(("dynamics_fit", "dynamics_training"), "dynamics.fitting"),
    **dict.fromkeys(("dynamics_inference", "dynamics_networks"), "dynamics.ensemble"),
    **{f"llm_{name}": f"llm.{name}" for name in ("local", "prompts", "schema")},
    **dict.fromkeys(("llm_backends", "llm_checkpoint"), "llm.saving"),
    "chat": "llm.chat",
    "chat_chances": "llm.chances",
    "gguf_weights": "llm.local",
    "progress_clips": "progress.clips",
    **dict.fromkeys(("progress_networks", "progress_training"), "progress.networks"),
    "fidelity": "evaluation.comparison",
    "fidelity_plots": "evaluation.report",
    "fidelity_report": "evaluation.report",
    "fitting": "evaluation.fitting",
    "sentences": "sentence_encoders",
}
_WRAPPERS = {
    **{name: f"engine.{name}" for name in ("engine", "options", "execution", "episodes", "background", "ledger")},
    "uncertainty": "engine.starts",
    "judged": "engine.reward_only",
    "cores": "wrappers.rewards",
    **dict.fromkeys(
        ("correction", "online_debiasing", "residual_correction", "inverse_variance_denoising"), "wrappers.corrections"
    ),
    **dict.fromkeys(("encode_instruction", "stack_images"), "wrappers.observations"),
    **dict.fromkeys(("vector.correction", "vector.presets"), "wrappers.vector.corrections"),
}
_SANDBOX = {
    "rlimits": "unisolated",
    "container": "docker_container",
    "data": "data_folders",
    "factory": "base",
    "cache": "records",
    "costs": "records",
    "inside.capture": "inside.outputs",
    "inside.submission": "inside.outputs",
    "inside.prefault": "inside.warmup",
    "inside.rehearsal": "inside.warmup",
    "inside.zygote": "inside.server",
}
MODULES = {
    **{f"wmrl_gym.envs.autoresearch.{old}": f"wmrl_gym.envs.autoresearch.{new}" for old, new in _AUTORESEARCH.items()},
    **{f"wmrl_gym.world_models.{old}": f"wmrl_gym.world_models.{new}" for old, new in _WORLD_MODELS.items()},
    **{f"wmrl_gym.wrappers.{old}": f"wmrl_gym.{new}" for old, new in _WRAPPERS.items()},
    **{f"wmrl_gym.corrections.{old}": "wmrl_gym.corrections.bias_evidence" for old in ("evidence", "features", "kappa")},
    **{f"wmrl_gym.corrections.{old}": "wmrl_gym.corrections.anchor_pairs" for old in ("pairs", "stream")},
    "wmrl_gym.corrections.online": "wmrl_gym.corrections.online_calibration",
    "wmrl_gym.envs.manipulation.ended": "wmrl_gym.envs.manipulation.refuse_after_end",
    **{f"wmrl_gym.sandbox.{old}": f"wmrl_gym.sandbox.{new}" for old, new in _SANDBOX.items()},
    "wmrl_gym.data.minari_reading": "wmrl_gym.data.minari",
}
"""The module that stands today for each of version 0.1 that moved."""


class _Alias(Loader):
    """Gives an old name the module that stands today; nothing is executed twice."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(MODULES[spec.name])
        self._own = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """The module has been executed already; it keeps the specification under which it was."""
        module.__spec__ = self._own


class MovedModules(MetaPathFinder):
    """Finds modules by the names of version 0.1."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module of today, and a warning that names it; None for every other name."""
        if fullname not in MODULES:
            return None
        new = MODULES[fullname]
        warnings.warn(f"{fullname} is {new} now; the old name goes with version 0.3", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias())


def keep_old_names() -> None:
    """Let the import system know of the old names; a second call changes nothing."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
