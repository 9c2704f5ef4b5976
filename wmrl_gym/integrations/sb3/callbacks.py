"""Callbacks: logs, and late anchors joined."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
from stable_baselines3.common.callbacks import BaseCallback

from wmrl_gym.integrations.arrays import LateTruths
from wmrl_gym.integrations.sb3.buffers import Parked, WeightedBuffer
from wmrl_gym.integrations.sb3.vec_env import GymnasiumVecEnv, scales_rewards
from wmrl_gym.wrappers import diagnostics, world_model_parts


class WorldModelCallback(BaseCallback):
    """Logs, after every rollout, what all wrappers have to say: anchors, calibration error, weight, executions and seconds.

    It warns once when a policy of discrete actions settles before anchors can tell it anything: its entropy has fallen to half of
    what it was in the first rollout, and fewer than ``least_pairs`` pairs have arrived. The policy has then settled on what the
    world model says alone, and anchors that come later are hardly heard.

    Args:
        venv: the environment.
        verbose: Stable-Baselines3's.
        least_pairs: pairs before which corrections have little to go by; 0 never warns.

    Raises:
        ValueError: a negative ``least_pairs``.
    """

    def __init__(self, venv: GymnasiumVecEnv, verbose: int = 0, *, least_pairs: int = 20) -> None:
        super().__init__(verbose)
        if least_pairs < 0:
            raise ValueError(f"least_pairs must not be negative, got {least_pairs}")
        self.venv, self.least_pairs = venv, least_pairs
        self._first_entropy: float | None = None
        self._rollouts = 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        for name, value in diagnostics(self.venv.envs).items():
            self.logger.record(name, value)
        self._rollouts += 1
        if self.least_pairs:
            self._advise()

    def _advise(self) -> None:
        """Warn where the policy's entropy falls faster than pairs arrive."""
        buffer: Any = getattr(self.model, "rollout_buffer", None)
        parts = world_model_parts(self.venv.envs)
        continuous = isinstance(self.venv.action_space, gym.spaces.Box)  # its entropy has no zero
        if buffer is None or parts is None or continuous or getattr(parts.engine.episodes.schedule, "fraction", 1.0) == 0.0:
            return
        entropy, pairs = float(-buffer.log_probs.mean()), parts.engine.stream.added
        self.logger.record("anchors/policy_entropy", entropy)
        if self._first_entropy is None:
            self._first_entropy = entropy
        if pairs >= self.least_pairs:
            self.least_pairs = 0  # from now on corrections have something to go by
        elif entropy <= self._first_entropy / 2.0:
            self.least_pairs = 0
            warnings.warn(
                f"the policy's entropy fell from {self._first_entropy:.2f} to {entropy:.2f} nats in {self._rollouts} rollouts, "
                f"in which {pairs} anchor pairs arrived: it settles on what the world model says before anchors correct that. "
                "Spend anchors early (anchors=EarlySchedule(...)), or take more entropy or a smaller learning rate",
                stacklevel=2,
            )


class LateAnchors(BaseCallback):
    """Joins background anchors' late truths to what SB3 learns from.

    Rollouts should hold whole episodes (``n_steps`` a multiple of the episode's length): the truth of an episode that is still
    under way cannot come yet.

    With a ``timeout_s`` it waits, at the end of each rollout, for that rollout's anchors, rewrites their rewards, leaves out the
    steps of those that did not arrive (and corrects the propensity of the others for it), and has advantages computed again.

    With ``timeout_s=None`` training never waits: the steps of anchors that are not there yet are parked, and learnt from with the
    first rollout that ends after their truth has arrived. No anchor is preferred for being quick, and PPO's ratio to the stored
    log-probabilities accounts for the policy's having moved on.

    Args:
        venv: the environment, trained with :func:`weighted`.
        timeout_s: the longest wait, in seconds; None parks instead.

    Raises:
        ValueError: a negative ``timeout_s``.
        TypeError: there are no background anchors, or the buffer is not a weighted one.
    """

    def __init__(self, venv: GymnasiumVecEnv, *, timeout_s: float | None = 60.0, verbose: int = 0) -> None:
        super().__init__(verbose)
        if timeout_s is not None and timeout_s < 0:
            raise ValueError(f"timeout_s must not be negative, got {timeout_s}")
        self.venv = venv
        self.timeout_s = timeout_s
        self._late = LateTruths(venv.envs, name="LateAnchors")
        self.engine, self.residual = self._late.engine, self._late.residual
        self._parked: list[Parked] = []
        self._truths: dict[int, float] = {}

    @property
    def arrived(self) -> int:
        """Truths that were joined."""
        return self._late.arrived

    @property
    def missing(self) -> int:
        """Anchors that were given up."""
        return self._late.missing

    def _init_callback(self) -> None:
        buffer = getattr(self.model, "rollout_buffer", None)
        if not isinstance(buffer, WeightedBuffer):
            raise TypeError(f"LateAnchors needs a weighted buffer: build the algorithm with **weighted(venv), got {buffer}")
        if scales_rewards(self.model.get_env()):
            raise TypeError("LateAnchors cannot rewrite rewards that VecNormalize has scaled: use norm_reward=False")
        self.engine.collect_late()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        buffer: Any = self.model.rollout_buffer  # type: ignore[attr-defined]
        where = {int(buffer.pairs[step, slot]): (step, slot) for step, slot in zip(*(buffer.pairs >= 0).nonzero(), strict=True)}
        if self.timeout_s is None:
            self._park(buffer, where)
        else:
            self._wait(buffer, self.timeout_s)
        self.logger.record("anchors/arrived", self.arrived)
        self.logger.record("anchors/missing", self.missing)
        self.logger.record("anchors/parked", len(self._parked))

    def _wait(self, buffer: Any, timeout_s: float) -> None:
        given = buffer.given.copy()
        self._late.join(buffer.given, buffer.valid, pairs=buffer.pairs, timeout_s=timeout_s)
        if (buffer.pairs >= 0).any():
            buffer.rewards += buffer.given - given
            buffer.recompute()

    def _park(self, buffer: Any, where: dict[int, tuple[int, int]]) -> None:
        episodes: dict[tuple[int, int], dict[int, int]] = {}
        for number, (step, slot) in where.items():
            episodes.setdefault((slot, buffer.first_step(step, slot)), {})[number] = step
        self._parked += [buffer.park(slot, pays) for (slot, _), pays in episodes.items()]
        self.engine.poll()
        self._settle(buffer)
        while self._parked and not buffer.usable.any() and not buffer.late and self.engine.in_flight:
            # Everything is parked: there is nothing to learn from until a truth arrives.
            self.engine.wait_for_one()
            self._settle(buffer)

    def _settle(self, buffer: Any) -> None:
        """Join the parked episodes whose truths are all there, and forget those that will never have them."""
        truths, lost = self.engine.collect_late()
        self._truths |= truths
        waiting = []
        for parked in self._parked:
            numbers = parked.given.keys()
            if numbers & lost:
                for number in numbers:
                    self._lost(number)
            elif numbers <= self._truths.keys():
                buffer.join(parked, {number: self._corrected(number, self._truths[number], 1.0) for number in numbers})
                self._late.arrived += len(numbers)
            else:
                waiting.append(parked)
        self._parked = waiting
        wanted = {number for parked in waiting for number in parked.given}
        self._truths = {number: truth for number, truth in self._truths.items() if number in wanted}

    def _lost(self, number: int) -> None:
        self._late.missing += 1
        if self.residual is not None:
            self.residual.forget(number)

    def _corrected(self, number: int, truth: float, completion: float) -> float:
        return truth if self.residual is None else self.residual.late_reward(number, truth, completion=completion)
