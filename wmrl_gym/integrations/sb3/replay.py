"""Replay buffers for off-policy algorithms, whose rewards follow the calibration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv, base_of
from wmrl_gym.wrappers import world_model_parts

_KEPT = ("wm_reward", "wm_reward_std", "real_reward", "context", "depth", "propensity", "pair", "reward_valid")


class Relabelling:
    """What the relabelled buffers add to SB3's.

    A reward is sampled long after it was predicted, when f has learnt from many more anchors. So raw predictions are kept, and a
    sampled reward is what the wrappers would pay *now*: f of the prediction; for an anchor its truth, or with
    :class:`~wmrl_gym.wrappers.ResidualCorrection` ``f + (kappa / p)(r - f)``. Late truths of background anchors are taken over as
    they arrive. Steps whose reward is not known are never sampled. Weights are not used: nothing here multiplies a loss.

    With ``real_share`` a part of each sample is real transitions, all that the world model has learnt from: warm-up, recorded
    steps and anchors. Among many imagined steps they would drown, or (the first two) were never the trainer's own.
    """

    def __init__(self, *args: Any, venv: GymnasiumVecEnv, seed: int = 0, real_share: float = 0.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not 0 <= real_share <= 1:
            raise ValueError(f"real_share must lie in [0, 1], got {real_share}")
        self.real = RealShare(venv, real_share, self.observation_space) if real_share else None  # type: ignore[attr-defined]
        if getattr(self, "optimize_memory_usage", False):
            raise ValueError("optimize_memory_usage must be False: it leaves out which steps are valid")
        self.venv = venv
        self.rng = np.random.default_rng(seed)
        parts = world_model_parts(venv.envs)
        self.debiasing = None if parts is None else parts.debiasing
        self.residual = None if parts is None else parts.residual
        background = parts is not None and parts.engine.options.anchor_mode == "background"
        self.engine = parts.engine if parts is not None and background else None
        shape = (self.buffer_size, self.n_envs)  # type: ignore[attr-defined]
        kinds: dict[str, Any] = {"context": np.int64, "depth": np.int64, "pair": np.int64, "reward_valid": np.bool_}
        self.kept = {name: np.zeros(shape, kinds.get(name, np.float64)) for name in _KEPT}
        self.kept["pair"][:] = -1
        self.features: NDArray[np.float32] | None = None
        """What was done, shape (buffer_size, n_envs, F), where a contextual correction asks."""
        self._where: dict[int, tuple[int, int]] = {}
        if self.engine is not None:
            self.engine.collect_late()

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()  # type: ignore[misc]
        self.kept["reward_valid"][:], self.kept["pair"][:] = False, -1
        self._where.clear()

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add one step of every environment, with what its info said."""
        last, pos = self.venv.last, self.pos  # type: ignore[attr-defined]
        if last is None:
            raise RuntimeError("the buffer belongs to another VecEnv than the one that was stepped")
        for number in self.kept["pair"][pos].tolist():
            self._where.pop(number, None)
        for name in _KEPT:
            self.kept[name][pos] = last[name]
        done = None if self.debiasing is None else self.debiasing.features_now
        if done is not None:
            if self.features is None:
                self.features = np.full((*self.kept["pair"].shape, done.shape[1]), np.nan, np.float32)
            self.features[pos] = done
        for slot in np.flatnonzero(last["pair"] >= 0).tolist():
            self._where[int(last["pair"][slot])] = (pos, slot)
        super().add(*args, **kwargs)  # type: ignore[misc]

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """``batch_size`` steps of known reward, with replacement, with the rewards of now.

        Raises:
            RuntimeError: there is not one.
        """
        self.settle()
        real = None if self.real is None else self.real.sample(batch_size, self.rng)
        filled = self.buffer_size if self.full else self.pos  # type: ignore[attr-defined]
        valid, n_envs = self.kept["reward_valid"].reshape(-1), self.n_envs  # type: ignore[attr-defined]
        wanted = batch_size - (0 if real is None else len(real))
        chosen = draw_where(valid.__getitem__, filled * n_envs, wanted, self.rng)
        if len(chosen) < wanted:
            raise RuntimeError("not one step in the buffer has a known reward: real execution or the model is failing")
        step, slot = np.divmod(chosen, n_envs)
        return self._samples(self._fields(step, slot, real, env))

    def settle(self) -> None:
        """Take over the late truths that have arrived."""
        if self.engine is None or not self._where:
            return
        self.engine.poll()
        truths, lost = self.engine.collect_late()
        for number, truth in truths.items():
            if number in self._where:
                self.kept["real_reward"][self._where.pop(number)] = truth
                if self.residual is not None and number in self.residual:
                    self.residual.late_reward(number, truth)  # what kappa learns from
        for number in lost:
            # An anchor without a truth is a step that was imagined, like any other.
            self._where.pop(number, None)
            if self.residual is not None:
                self.residual.forget(number)

    def rewards_at(self, step: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.float32]:
        """What the wrappers would pay now for the steps at ``(step, slot)``: float32, shape (n,)."""
        reward = self.rewards[step, slot].astype(np.float64)  # type: ignore[attr-defined]
        row = {name: values[step, slot] for name, values in self.kept.items()}
        predicted, known = np.isfinite(row["wm_reward"]), np.isfinite(row["real_reward"])
        f = row["wm_reward"].copy()
        if self.debiasing is not None and predicted.any():
            columns = (row[name][predicted] for name in ("wm_reward", "wm_reward_std", "context", "depth"))
            done = None if self.features is None else self.features[step, slot][predicted].astype(np.float64)
            f[predicted] = self.debiasing.calibrated(*columns, features=done).value
        reward = np.where(predicted, f, reward)
        reward[known] = row["real_reward"][known]
        both = known & predicted
        if self.residual is not None and both.any():
            gain = self.residual.gain(row["propensity"][both])
            reward[both] = f[both] + gain * (row["real_reward"][both] - f[both])
        return reward.astype(np.float32)

    def _samples(self, fields: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _fields(
        self, step: NDArray[np.int64], slot: NDArray[np.int64], real: Transitions | None, env: VecNormalize | None
    ) -> dict[str, Any]:
        """The parts of SB3's samples, as tensors: the steps at ``(step, slot)``, and ``real`` ones after them."""
        buffer: Any = self
        # An episode that was cut short goes on: there learners bootstrap.
        fields = {
            "observations": _at(buffer.observations, step, slot),
            "next_observations": _at(buffer.next_observations, step, slot),
            "actions": buffer.actions[step, slot],
            "dones": buffer.dones[step, slot] * (1 - buffer.timeouts[step, slot]),
            "rewards": self.rewards_at(step, slot),
        }
        if real is not None:
            after = {
                "observations": real.observation,
                "next_observations": real.next_observation,
                "actions": real.action,
                "dones": real.terminated.astype(np.float32),
                "rewards": real.reward.astype(np.float32),
            }
            fields = batch.concatenate([fields, after])
        for name in ("observations", "next_observations"):
            fields[name] = buffer._normalize_obs(fields[name], env)
        for name in ("dones", "rewards"):
            fields[name] = fields[name].reshape(-1, 1)
        fields["rewards"] = buffer._normalize_reward(fields["rewards"], env)
        return {name: _each(buffer.to_torch, value) for name, value in fields.items()}


class RealShare:
    """Real transitions of the engine of a ``VecEnv``, as SB3's buffers hold them.

    Args:
        venv: an environment with a world model.
        share: of each sample.
        space: the observation space that the learner sees.

    Raises:
        ValueError: there is no world model, or the learner sees other observations than it.
    """

    def __init__(self, venv: GymnasiumVecEnv, share: float, space: gym.Space[Any]) -> None:
        parts = world_model_parts(venv.envs)
        if parts is None:
            raise ValueError(f"real_share needs an environment with a world model, got {venv.envs}")
        self.engine, self.share, self.action_space = parts.engine, share, venv.action_space
        if space != self.engine.real.interface.observation_space:
            raise ValueError(
                f"real_share mixes real observations, in {self.engine.real.interface.observation_space}, among the learner's, "
                f"which are in {space}: transpose images below the world model"
            )

    def sample(self, batch_size: int, rng: np.random.Generator) -> Transitions | None:
        """The share of ``batch_size``, with replacement, actions as the learner has them; None where nothing real is known."""
        buffer = self.engine.buffer
        chosen = draw_where(lambda at: buffer.at(at).reward_valid, len(buffer), round(self.share * batch_size), rng)
        return self._as_kept(buffer.at(chosen)) if len(chosen) else None

    def _as_kept(self, transitions: Transitions) -> Transitions:
        """SB3 keeps Box actions scaled to [-1, 1], and others in rows."""
        action, space = np.asarray(transitions.action), self.action_space
        if isinstance(space, gym.spaces.Box):
            action = 2.0 * (action - space.low) / (space.high - space.low) - 1.0
        rows = action.reshape(len(action), -1).astype(np.float32 if isinstance(space, gym.spaces.Box) else np.int64)
        return replace(transitions, action=rows, attempt=None, outcome=None)


def draw_where(
    usable: Callable[[NDArray[np.int64]], NDArray[np.bool_]], size: int, n: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """``n`` of the rows from 0 to ``size - 1`` that are usable, with replacement; none where not one is.

    Rows are drawn and asked for until there are enough, so that it costs no more in a large buffer than in a small one; where few
    are usable all are looked at.

    Args:
        usable: says which of some rows are: int64, shape (k,) -> bool, shape (k,).
        size: rows.
        n: how many are wanted.
        rng: draws them.
    """
    chosen, asked, left = np.zeros(0, np.int64), 0, n
    while left and asked < min(size, _DRAWS * n):
        drawn = rng.integers(size, size=left)
        asked += left
        chosen = np.concatenate([chosen, drawn[usable(drawn)]])
        left = n - len(chosen)
    if left and size:
        rows = np.flatnonzero(usable(np.arange(size)))
        chosen = np.concatenate([chosen, rows[rng.integers(len(rows), size=left)]]) if len(rows) else chosen
    return chosen


_DRAWS = 20
"""Rows drawn for each that is wanted before all are looked at."""


class RelabelledReplayBuffer(Relabelling, ReplayBuffer):
    """SB3's replay buffer with raw predictions kept, and rewards relabelled by the present f as they are sampled.

    ``SAC("MlpPolicy", venv, **relabelled(venv))``; see :class:`Relabelling`.

    Args:
        venv: the environment that is stepped.
        seed: of what is sampled.
        real_share: of each sample, how much is real transitions, once there are some.

    Raises:
        ValueError: with ``optimize_memory_usage``, or a share that cannot be.
    """

    def _samples(self, fields: dict[str, Any]) -> ReplayBufferSamples:
        return ReplayBufferSamples(**fields)


class RelabelledDictReplayBuffer(Relabelling, DictReplayBuffer):
    """:class:`RelabelledReplayBuffer` for Dict observations."""

    def _samples(self, fields: dict[str, Any]) -> DictReplayBufferSamples:
        return DictReplayBufferSamples(**fields)


def relabelled(venv: VecEnv, *, seed: int = 0, real_share: float = 0.0) -> dict[str, Any]:
    """Keyword arguments that make an off-policy algorithm relabel what it replays: ``SAC(..., **relabelled(venv))``.

    Args:
        venv: what :func:`to_vec_env` made, or SB3's own wrappers around it.
        seed: of what is sampled.
        real_share: of each sample, how much is real transitions; 0 leaves them where they stand among the imagined ones.

    Raises:
        TypeError: another environment.
    """
    buffer = RelabelledDictReplayBuffer if isinstance(venv.observation_space, gym.spaces.Dict) else RelabelledReplayBuffer
    return {
        "replay_buffer_class": buffer,
        "replay_buffer_kwargs": {"venv": base_of(venv), "seed": seed, "real_share": real_share},
    }


def _at(array: Any, step: NDArray[np.int64], slot: NDArray[np.int64]) -> Any:
    if isinstance(array, Mapping):
        return {key: value[step, slot] for key, value in array.items()}
    return array[step, slot]


def _each(convert: Any, value: Any) -> Any:
    return {key: convert(part) for key, part in value.items()} if isinstance(value, Mapping) else convert(value)
