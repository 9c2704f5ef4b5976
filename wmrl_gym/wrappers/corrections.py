"""The correction wrappers of one environment, and what their vector twins share with them."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from wmrl_gym.corrections import AdaptiveKappa, Calibrator, ContextualCalibration, OnlineCalibration, RewardGuard
from wmrl_gym.engine.describing import Features
from wmrl_gym.engine.info import KEYS, StepInfo
from wmrl_gym.factored import Step
from wmrl_gym.samples import stack_samples
from wmrl_gym.wrappers.denoising import Method, Mode, make_denoising
from wmrl_gym.wrappers.rewards import Correction, Debiasing, OrderError, Residual
from wmrl_gym.wrappers.world_model import EngineWrapper, WorldModelWrapper

CalibratorChoice = Literal["smooth", "binned", "contextual"] | Calibrator | ContextualCalibration
RewardRange = tuple[float, float] | None | Literal["environment"]


class HasCorrection:
    """What the correction wrappers of single and of vector environments share: the correction, its log and its saved state."""

    correction: Correction
    """What is done to the rewards."""

    @property
    def core(self) -> Correction:
        """The name that :attr:`correction` had in version 0.1."""
        name = type(self).__name__
        message = f"{name}.core is called {name}.correction now; the old name goes with version 0.3"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.correction

    def stats(self) -> dict[str, float]:
        """What a log should say of this correction."""
        return self.correction.stats()

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, for :meth:`load_state_dict`."""
        return self.correction.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.correction.load_state_dict(state)


class CorrectionWrapper(HasCorrection, EngineWrapper):
    """Applies a :class:`~wmrl_gym.wrappers.rewards.Correction` to every step of an environment with a world model.

    Raises:
        OrderError: there is no world model below, or another correction that must stand above this one.
    """

    def __init__(self, env: gym.Env[Any, Any], correction: Correction) -> None:
        super().__init__(env)
        below: list[Correction] = []
        layer: Any = env
        while isinstance(layer, gym.Wrapper) and not isinstance(layer, WorldModelWrapper):
            if isinstance(layer, CorrectionWrapper):
                below.append(layer.correction)
            layer = layer.env
        if not isinstance(layer, WorldModelWrapper):
            raise no_world_model(correction, env, vector=isinstance(env, gym.vector.VectorEnv))
        self.correction = correction
        correction.attach(layer.engine, below)

    def batched_step(self, action: Any) -> Step:
        """Step, and correct the reward."""
        below = self.env
        step = below.batched_step(action) if isinstance(below, EngineWrapper) else _batched(below, action)
        step.reward[:] = self.correction.correct(step.reward, step.info, [action])  # type: ignore[arg-type]
        return step


def _batched(env: gym.Env[Any, Any], action: Any) -> Step:
    """A step of a wrapper of another kind, as a batch of one."""
    observation, reward, terminated, truncated, info = env.step(action)
    known: dict[str, Any] = {key: np.array([info[key]], KEYS[key].dtype) for key in KEYS if key in info}
    rows = StepInfo(1, known, own=[{key: value for key, value in info.items() if key not in KEYS}])
    ended, cut = np.array([terminated], bool), np.array([truncated], bool)
    batched = stack_samples(env.observation_space, [observation])
    return Step(batched, np.array([float(reward)]), ended, cut, rows["reward_due"], rows["reward_valid"], rows)


class OnlineDebiasing(CorrectionWrapper):
    """Replaces each predicted reward by f(reward), the real reward to be expected of it ("Online Debiasing", arXiv 2608.12564).

    f is monotone, so that the ranking which the model got right stays, and is fitted on the anchors' pairs; with none it is the
    identity. The truth in a blocking anchor's reward is left alone. ``info["calibrated_reward"]`` is f of the prediction in every
    episode, ``info["residual_var"]`` the running mean square of what f misses.

    Args:
        env: an environment with a world model.
        calibrator: "smooth", the paper's "binned", or an instance. "contextual" adds to the smooth f what was done: a Gaussian
            process on features explains what f leaves (:class:`~wmrl_gym.corrections.ContextualCalibration`).
        reward_range: of one step's reward. "environment" is what the environment itself declares, and a running range where it
            declares none; None is a running range.
        pessimism: None, or how many standard errors predictions that few anchors confirm are held down by (see
            :class:`~wmrl_gym.corrections.RewardGuard`); some of their episodes are then executed after all.
        features: of the "contextual" calibrator: ``features(observation, action, info)``, batches of n rows in, float, shape (n,
            F) out. None takes the environment's own: of the attempt, where it is factored, else observation and action.

    Raises:
        OrderError: no world model below, or a correction that needs this one is.
        ValueError: "contextual" in an environment that has no features, and none are given.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        calibrator: CalibratorChoice = "smooth",
        *,
        reward_range: RewardRange = "environment",
        pessimism: float | None = None,
        features: Features | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, calibrator=calibrator, reward_range=reward_range, pessimism=pessimism, features=features
        )
        super().__init__(env, make_debiasing(env, calibrator, reward_range=reward_range, pessimism=pessimism, features=features))


class ResidualCorrection(CorrectionWrapper):
    """Pays anchors ``f + (kappa / p)(r - f)``: on average over episodes that is f plus kappa times what f misses.

    An algorithm that knows nothing of weights, such as plain PPO, so profits from anchors. The rewards of anchors span about
    kappa / p times the reward's range: do not clip them outside this wrapper, and do not divide them by each group's own
    standard deviation, which would undo the correction.

    Args:
        env: an environment with a world model and :class:`OnlineDebiasing`.
        kappa: share of the residual that is passed on, in [0, 1], or an :class:`~wmrl_gym.corrections.AdaptiveKappa`.
        late: for background anchors: promises that the trainer joins late truths itself (``LateAnchors`` for Stable-Baselines3).
        max_gain: the most that kappa / p may be. With very few anchors a single one would otherwise outweigh a whole batch; where
            there is about one a batch, 1 to 2 serves better than the default, which suits ten and more.

    Raises:
        OrderError: no world model or no OnlineDebiasing below, or background anchors whose late truths nobody joins.
    """

    def __init__(
        self, env: gym.Env[Any, Any], kappa: float | AdaptiveKappa = 0.5, *, late: bool = False, max_gain: float = 5.0
    ) -> None:
        RecordConstructorArgs.__init__(self, kappa=kappa, late=late, max_gain=max_gain)
        super().__init__(env, Residual(kappa, late=late, max_gain=max_gain))
        check_late(self, late)


class InverseVarianceDenoising(CorrectionWrapper):
    """Weighs each reward by how noisy it is (arXiv 2608.12564, "Inverse-Variance Denoising").

    Mode "paper" sets ``info["weight"]``, how much the advantage of a step should count: ``w = clip(1 + c s^2, 1, 4)`` on anchors,
    where s^2 is the running disagreement of calibrated predictions and truths, and 1 on others. Mode "gradient" sets it too, to
    the ratio of the variances of the two streams as they are measured (:class:`~wmrl_gym.corrections.RewardFusion`). A trainer
    must use the weight; :class:`~wmrl_gym.integrations.sb3.WeightedRolloutBuffer` does. Mode "reward" changes the reward instead,
    for any trainer: each predicted one is shrunk towards its group's mean by its own ``wm_reward_std``
    (:class:`~wmrl_gym.corrections.RewardShrinkage`).

    Args:
        env: an environment with a world model.
        mode: "paper", "gradient" or "reward".
        method: of mode "gradient": variances by the "delta" method or by "bootstrap".
        late: for background anchors: promises that the trainer joins late truths itself; a weight on an imagined reward in their
            place would trust the model more where it should be trusted less. Mode "reward" does not need it.

    Raises:
        OrderError: no world model below, or background anchors whose late truths nobody joins.
        ValueError: an unknown mode, or a method for a mode that has none.
    """

    def __init__(self, env: gym.Env[Any, Any], mode: Mode = "paper", *, method: Method = "delta", late: bool = False) -> None:
        RecordConstructorArgs.__init__(self, mode=mode, method=method, late=late)
        correction = make_denoising(mode, method)
        super().__init__(env, correction)
        check_late(self, late or not correction.joins_late)


def no_world_model(correction: Correction, env: Any, *, vector: bool) -> OrderError:
    """The error of a correction with nothing to correct."""
    if vector:
        return OrderError(f"{correction.name} got a vector environment: use wmrl_gym.wrappers.vector.{correction.name}")
    return OrderError(
        f"{correction.name} corrects the rewards that a world model predicts, and {env} has none: "
        "wrap it in WorldModelWrapper first"
    )


def make_debiasing(
    env: Any,
    calibrator: CalibratorChoice,
    *,
    reward_range: RewardRange,
    pessimism: float | None,
    features: Features | None = None,
) -> Debiasing:
    """The debiasing for ``env``, single or vector.

    Raises:
        TypeError: features that cannot be called.
        ValueError: features for a calibrator that uses none.
    """
    guard = None if pessimism is None else RewardGuard(pessimism)
    if features is not None and not callable(features):
        raise TypeError(f"features must be callable(observation, action, info) -> (B, F), got {type(features).__name__}")
    contextual = isinstance(calibrator, ContextualCalibration) or calibrator == "contextual"
    if features is not None and not contextual:
        raise ValueError(f'features are for the calibrator "contextual", got {calibrator!r}')
    if isinstance(calibrator, ContextualCalibration):
        return Debiasing(calibrator, guard=guard, features=features)
    if not isinstance(calibrator, str):
        return Debiasing(OnlineCalibration(calibrator, reward_range=calibrator.reward_range), guard=guard)
    if reward_range == "environment":
        reward_range = declared_range(env)
    if calibrator == "contextual":
        return Debiasing(ContextualCalibration(reward_range=reward_range), guard=guard, features=features)
    return Debiasing(OnlineCalibration(calibrator, reward_range=reward_range), guard=guard)


def declared_range(env: Any) -> tuple[float, float] | None:
    """The reward range of the environment below, None where it is not finite or there is no world model."""
    layer = env
    while layer is not None and not hasattr(layer, "engine"):
        layer = getattr(layer, "env", None)
    if layer is None:
        return None
    low, high = layer.engine.real.interface.reward_range
    return (low, high) if abs(low) < float("inf") and abs(high) < float("inf") else None


def check_late(wrapper: Any, late: bool) -> None:
    """Refuse background anchors unless the trainer has promised to join their truths."""
    layer = wrapper
    while not hasattr(layer, "engine"):
        layer = layer.env
    if layer.engine.options.anchor_mode == "background" and not late:
        raise OrderError(
            f"{wrapper.correction.name} cannot change rewards that step() has already returned, and background anchors' truths "
            "arrive later: use anchor_mode='blocking', or pass late=True and let the trainer join them "
            "(wmrl_gym.integrations.sb3.LateAnchors does it for Stable-Baselines3)"
        )
