"""Rollout buffers that use weights, leave out what is unknown, and take anchors whose truth came late."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.type_aliases import DictRolloutBufferSamples, RolloutBufferSamples
from stable_baselines3.common.vec_env import VecEnv

from wmrl_gym.integrations.arrays import known_to_the_end
from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv, learnable

Rows = dict[str, Any]
"""Steps out of a buffer: arrays of n rows, observations a dict of such where the space is one."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The steps of one anchor's episode that wait for its truths.

    Args:
        rows: the n steps, from the first of the episode in its rollout to the last that pays.
        given: for each pair's number the reward that its step was given.
        discount: for each pair's number how much a change of that reward changes each step's advantage: float64, shape (n,).
        weight: float64, shape (n,). What the advantages were multiplied by.
    """

    rows: Rows
    given: dict[int, float]
    discount: dict[int, NDArray[np.float64]]
    weight: NDArray[np.float64]


class WeightedBuffer:
    """What the weighted buffers add to SB3's.

    An unknown reward makes the returns of its whole episode so far unknown: all those steps are left out.
    """

    columns: ClassVar[tuple[str, ...]] = ("observations", "actions", "values", "log_probs", "advantages", "returns")
    """What a step of a minibatch is made of."""

    def __init__(self, *args: Any, venv: GymnasiumVecEnv, seed: int = 0, **kwargs: Any) -> None:
        self.venv = venv
        self.rng = np.random.default_rng(seed)
        super().__init__(*args, **kwargs)

    def reset(self) -> None:
        """Empty the buffer."""
        shape = (self.buffer_size, self.n_envs)  # type: ignore[attr-defined]
        self.weights = np.ones(shape)
        self.valid = np.ones(shape, bool)
        self.pairs = np.full(shape, -1, np.int64)
        self.given = np.zeros(shape)
        self.late: list[Rows] = []
        super().reset()  # type: ignore[misc]

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Add one step of every environment, with what its info said."""
        last, pos = self.venv.last, self.pos  # type: ignore[attr-defined]
        if last is None:
            raise RuntimeError("the buffer belongs to another VecEnv than the one that was stepped")
        self.weights[pos], self.valid[pos] = last["weight"], last["reward_valid"]
        self.pairs[pos], self.given[pos] = last["pair"], last.reward
        super().add(*args, **kwargs)  # type: ignore[misc]

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """SB3's, and the weights on the advantages."""
        self._last = (last_values, dones)
        super().compute_returns_and_advantage(last_values=last_values, dones=dones)  # type: ignore[misc]
        self.advantages: NDArray[Any] = self.advantages * self.weights.astype(np.float32)
        self.usable = self._usable()

    def recompute(self) -> None:
        """Returns and advantages anew, after rewards or validity were changed."""
        self.compute_returns_and_advantage(*self._last)

    def park(self, slot: int, pays: Mapping[int, int]) -> Parked:
        """Take an episode out of this rollout, until the truths of its rewards are known.

        Args:
            slot: where it ran.
            pays: for each pair's number the step, of this rollout, that it pays.
        """
        last = max(pays.values())
        at = np.arange(self.first_step(last, slot), last + 1)
        self.valid[at, slot] = False
        self.usable[at, slot] = False
        rows = {name: _pick(getattr(self, name), at, slot) for name in self.columns}
        keep = self.gamma * self.gae_lambda  # type: ignore[attr-defined]
        discount = {number: np.where(at <= step, keep ** np.maximum(step - at, 0.0), 0.0) for number, step in pays.items()}
        given = {number: float(self.given[step, slot]) for number, step in pays.items()}
        return Parked(rows, given, discount, self.weights[at, slot].copy())

    def join(self, parked: Parked, rewards: Mapping[int, float]) -> None:
        """Learn from a parked episode together with this rollout, now that the ``rewards`` of its pairs are known.

        Advantages are linear in rewards, so that the old ones only have to be shifted. That the policy has moved on since is what
        the ratio to the stored log-probabilities is for.
        """
        shift = np.sum([parked.discount[number] * (rewards[number] - given) for number, given in parked.given.items()], axis=0)
        rows = dict(parked.rows)
        rows["advantages"] = (rows["advantages"] + parked.weight * shift).astype(np.float32)
        rows["returns"] = (rows["returns"] + shift).astype(np.float32)
        self.late.append(rows)

    def first_step(self, step: int, slot: int) -> int:
        """The first step, in this rollout, of the episode that is under way at ``step``."""
        starts = self.episode_starts[: step + 1, slot]  # type: ignore[attr-defined]
        return int(np.flatnonzero(starts)[-1]) if starts.any() else 0

    def _usable(self) -> NDArray[np.bool_]:
        """Valid steps whose episode has no unknown reward after them: bool, shape (n_steps, n_envs)."""
        following = self.episode_starts[1:] != 0  # type: ignore[attr-defined]
        return known_to_the_end(self.valid, np.concatenate([following, np.ones_like(self.valid[:1])]))

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """Minibatches of the usable steps and of the late ones, in random order.

        With late and unknown steps their number is seldom a multiple of ``batch_size``. A remainder of a few steps would be
        normalised among themselves and change the policy as much as a whole minibatch: so all are of nearly equal size.

        Args:
            batch_size: steps of a minibatch, about: n steps come in round(n / batch_size) of them. None is one of all.

        Raises:
            RuntimeError: there is not one.
        """
        next(super().get(None))  # type: ignore[misc]  # SB3's own flattens the arrays, once
        self._append_late()
        order = self._order()
        for rows in np.array_split(order, max(1, round(len(order) / (batch_size or len(order))))):
            yield self._get_samples(rows)  # type: ignore[attr-defined]

    def _append_late(self) -> None:
        """Put the late steps behind the flattened arrays."""
        for rows in self.late:
            for name in self.columns:
                setattr(self, name, _append(getattr(self, name), rows[name]))
        self.late = []

    def _order(self) -> NDArray[np.int64]:
        own = np.flatnonzero(self.usable.swapaxes(0, 1).reshape(-1))
        late = np.arange(self.usable.size, len(self.actions))  # type: ignore[attr-defined]
        indices = np.concatenate([own, late])
        if not len(indices):
            raise RuntimeError("not one step of this rollout has a known reward: real execution or the model is failing")
        return self.rng.permutation(indices)


def _pick(array: Any, at: NDArray[np.int64], slot: int) -> Any:
    if isinstance(array, Mapping):
        return {key: value[at, slot].copy() for key, value in array.items()}
    return array[at, slot].copy()


def _append(flat: Any, rows: Any) -> Any:
    if isinstance(flat, Mapping):
        return {key: np.concatenate([value, rows[key]]) for key, value in flat.items()}
    return np.concatenate([flat, rows.reshape(len(rows), *flat.shape[1:])])


class WeightedRolloutBuffer(WeightedBuffer, RolloutBuffer):
    """SB3's rollout buffer with each advantage multiplied by ``info["weight"]`` and steps of unknown reward left out.

    Args:
        venv: the environment that is stepped.
        seed: of the minibatches' order.
    """

    def get(self, batch_size: int | None = None) -> Generator[RolloutBufferSamples, None, None]:
        """See :meth:`WeightedBuffer.get`."""
        return super().get(batch_size)


class WeightedDictRolloutBuffer(WeightedBuffer, DictRolloutBuffer):
    """:class:`WeightedRolloutBuffer` for Dict observations."""

    def get(self, batch_size: int | None = None) -> Generator[DictRolloutBufferSamples, None, None]:  # type: ignore[override]
        """See :meth:`WeightedBuffer.get`."""
        return super().get(batch_size)


def weighted(venv: VecEnv, *, seed: int = 0, masks: bool = False) -> dict[str, Any]:
    """Keyword arguments that make an on-policy algorithm use weights and skip invalid steps: ``PPO(..., **weighted(venv))``.

    Args:
        venv: what :func:`to_vec_env` made, or SB3's own wrappers around it.
        seed: of the minibatches' order.
        masks: for sb3-contrib's MaskablePPO.

    Raises:
        TypeError: another environment, or rewards that VecNormalize scales: its scale would learn from unknown ones.
        DependencyNotInstalled: masks, and there is no sb3-contrib.
    """
    base = learnable(venv)
    of_dicts = isinstance(venv.observation_space, gym.spaces.Dict)
    if masks:
        from wmrl_gym.integrations.sb3 import contrib

        buffer: type = contrib.WeightedMaskableDictRolloutBuffer if of_dicts else contrib.WeightedMaskableRolloutBuffer
    else:
        buffer = WeightedDictRolloutBuffer if of_dicts else WeightedRolloutBuffer
    return {"rollout_buffer_class": buffer, "rollout_buffer_kwargs": {"venv": base, "seed": seed}}
