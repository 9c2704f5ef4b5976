"""The whole stack in one call: which corrections stand around a world model, for one environment and for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import gymnasium as gym

from wmrl_gym.corrections import AdaptiveKappa
from wmrl_gym.world_models import WorldModel

PresetName = Literal["recommended", "contextual", "smooth", "adaptive", "paper", "debias", "denoise"]


@dataclass(frozen=True, slots=True)
class Preset:
    """A choice of corrections.

    Args:
        calibrator: of OnlineDebiasing; None leaves it out. "best" is contextual where attempts have features, else smooth.
        residual: whether ResidualCorrection stands on top of it, and with which kappa; None adapts it.
        weight: whether InverseVarianceDenoising does.
        group_size: episodes a group for the anchor decision.
    """

    calibrator: Literal["smooth", "binned", "contextual", "best"] | None
    residual: float | Literal[False] | None
    weight: bool
    group_size: int

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of the world model's environment: those given, and the group size unless a schedule has its own."""
        evenly = isinstance(given.get("anchors", 0.1), Real)
        return {"group_size": self.group_size, **given} if evenly else dict(given)

    def around(self, env: Any, wrappers: Any, *, late: bool, max_gain: float) -> Any:
        """``env`` in the corrections of this preset, taken from a module: the single environments' or the vectors'."""
        if self.calibrator is not None:
            env = wrappers.OnlineDebiasing(env, self._calibrator_for(env))
        if self.residual is not False:
            kappa = AdaptiveKappa() if self.residual is None else self.residual
            env = wrappers.ResidualCorrection(env, kappa, late=late, max_gain=max_gain)
        return wrappers.InverseVarianceDenoising(env, late=late) if self.weight else env

    def _calibrator_for(self, env: Any) -> Any:
        """Contextual corrections were measured to win where attempts are described, and nowhere else so far."""
        if self.calibrator != "best":
            return self.calibrator
        return "contextual" if env.engine.describes_attempts else "smooth"


PRESETS: dict[str, Preset] = {
    "paper": Preset("binned", residual=False, weight=True, group_size=8),
    "recommended": Preset("best", residual=0.5, weight=False, group_size=1),
    "smooth": Preset("smooth", residual=0.5, weight=False, group_size=1),
    "contextual": Preset("contextual", residual=0.5, weight=False, group_size=1),
    "adaptive": Preset("smooth", residual=None, weight=False, group_size=1),
    # One half of the paper's method each, for ablations.
    "debias": Preset("binned", residual=False, weight=False, group_size=8),
    "denoise": Preset(None, residual=False, weight=True, group_size=8),
}


def preset_of(name: str) -> Preset:
    """The preset of this name.

    Raises:
        ValueError: there is none.
    """
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {sorted(PRESETS)}, got {name!r}")
    return PRESETS[name]


def corrected(
    env: gym.Env[Any, Any],
    model: WorldModel,
    *,
    preset: PresetName = "recommended",
    late: bool = False,
    max_gain: float = 5.0,
    **world_model: Any,
) -> gym.Env[Any, Any]:
    """``env`` in a world model with a preset's corrections, in their order.

    Args:
        env: any Gymnasium environment.
        model: the world model.
        preset: "recommended": episode anchors, and residual correction at kappa 0.5 on a calibration that is contextual (f, and
            what was done) where the attempts of a factored environment have features, and smooth (f alone) elsewhere;
            ``debias/contextual`` in the log says which. "contextual" and "smooth": the one or the other in any case; the first
            is an error where there are no features. "adaptive": "smooth" with kappa adapted online.
            "paper": group anchors, binned isotonic calibration, weights (for a trainer that uses them).
            "debias" and "denoise": one half of the paper's method each, for ablations.
        late: passed to ResidualCorrection and InverseVarianceDenoising.
        max_gain: passed to ResidualCorrection.
        **world_model: passed to WorldModelWrapper, such as ``anchors=0.1``.
    """
    from wmrl_gym import wrappers

    choice = preset_of(preset)
    made = wrappers.WorldModelWrapper(env, model, **choice.arguments(world_model))
    corrected_env: gym.Env[Any, Any] = choice.around(made, wrappers, late=late, max_gain=max_gain)
    return corrected_env
