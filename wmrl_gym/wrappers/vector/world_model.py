"""Many environments in one world model: one batched prediction a step, a few real executions behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.engine.arguments import executions_of, schedule_of
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.options import AnchorMode, EngineOptions, Horizon, StartFrom, UpdateMode
from wmrl_gym.engine.reward_only import Replaces, engine_of
from wmrl_gym.engine.uncertainty import UncertaintyKind
from wmrl_gym.factored import Factored
from wmrl_gym.slots import SlotStep, SlotVectorEnv
from wmrl_gym.world_models import PairKind, WorldModel
from wmrl_gym.wrappers.world_model import cost_of, engine_stats


class WorldModelVectorEnv(SlotVectorEnv):
    """``num_envs`` imagined environments with at most ``max_real`` real executions at once behind them.

    Args:
        source: what is imagined: the parts of a factored environment, the id of a registered environment, or a function that
            makes an environment.
        model: the world model.
        num_envs: imagined environments.
        max_real: real executions at once.
        anchors: share of the episodes that are anchors, in [0, 1], or a schedule.
        group_size: consecutive episodes that share their start and the anchor decision (GRPO's groups); None is 1, or a
            schedule's own.
        anchor_mode: "blocking": an anchor's step waits for its execution. "background": it is imagined like any other, and
            executed behind; the pairs arrive late.
        pairs: how anchor predictions are made; None takes the model's own choice.
        warmup: real steps with random actions before the first episode of a model that knows nothing yet, or as many as the model
            asks for (``min_transitions``), if that is more, less those of :meth:`learn_from`; 0 makes the first episodes real
            instead.
        update_every: real transitions between two updates of the model; 0 never updates it.
        update_mode: "blocking", or "background": a model that allows it learns on another thread while environments are stepped.
        max_model_steps: imagined episodes are truncated after so many steps: a number, or a function of how many real
            transitions there have been (a horizon that grows as the model gets better).
        start_states: "real": imagined episodes start at a real reset. "buffer": at an observation that really occurred, so that
            short ones reach everywhere; anchors still start at a real reset.
        max_in_flight: background anchors that wait or run at once; one more waits for one of them.
        replaces: "step": the model predicts whole steps. "reward": all steps are real, and the model says what they are worth.
        autoreset_mode: Gymnasium's.
        uncertainty: what a schedule by uncertainty goes by: what the "model" says of its errors, or the measured "disagreement".
        seed: of the run until ``reset(seed=...)`` gives another; None draws one.

    Raises:
        TypeError: ``source`` is none of these, or the model cannot replace what it is to.
        ValueError: an argument out of range.

    >>> from wmrl_gym.world_models import Prediction
    >>> class Still(WorldModel):  # believes that nothing moves and every step pays 1
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         n = len(state)
    ...         no, yes = np.zeros(n, bool), np.ones(n, bool)
    ...         return state, Prediction(state, np.ones(n), np.full(n, np.nan), no, no, yes, yes)
    >>> envs = WorldModelVectorEnv("CartPole-v1", Still(), num_envs=5, anchors=0.0)
    >>> observation, info = envs.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = envs.step(np.zeros(5, dtype=int))
    >>> reward
    array([1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        source: Factored[Any, Any] | str | Callable[[], gym.Env[Any, Any]],
        model: WorldModel,
        *,
        num_envs: int,
        max_real: int = 1,
        anchors: float | Schedule = 0.1,
        group_size: int | None = None,
        anchor_mode: AnchorMode = "blocking",
        pairs: PairKind | None = None,
        warmup: int = 64,
        update_every: int = 32,
        update_mode: UpdateMode = "blocking",
        max_model_steps: Horizon = None,
        start_states: StartFrom = "real",
        max_in_flight: int = 64,
        replaces: Replaces = "step",
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        uncertainty: UncertaintyKind = "model",
        seed: int | None = None,
    ) -> None:
        if warmup < 0:
            raise ValueError(f"warmup must be 0 or more, got {warmup}")
        schedule = schedule_of(anchors, group_size)
        real, limit = executions_of(source, max_real=max_real)
        interface = real.interface
        super().__init__(
            num_envs, interface.observation_space, action_space=interface.action_space, autoreset_mode=autoreset_mode
        )
        options = EngineOptions(
            num_slots=num_envs,
            anchor_mode=anchor_mode,
            pairs=model.pairs if pairs is None else pairs,
            update_every=update_every,
            update_mode=update_mode,
            max_model_steps=max_model_steps,
            start_states=start_states,
            max_episode_steps=limit,
            max_in_flight=max_in_flight,
            uncertainty=uncertainty,
            seed=seed,
        )
        self.model = model
        self.warmup = warmup
        model.bind(interface)
        self.engine = engine_of(replaces, real, model, schedule=schedule, options=options)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all slots, or in those of ``options["reset_mask"]``.

        Args:
            seed: an int begins the run anew from it (starts are then drawn by episode group, so that the members of a group
                share theirs); a list seeds the start of each slot's episode.
            options: for the environment's start.
        """
        if isinstance(seed, (int, np.integer)):
            self.engine.reseed(int(seed))
            seed = None
        if self.warmup and not self.model.fitted:
            wanted = max(self.warmup, getattr(self.model, "min_transitions", 0))
            self.warm_up(max(0, wanted - self.engine.buffer.added))
        return super().reset(seed=seed, options=options)

    def warm_up(self, executions: int, *, seconds: float = np.inf) -> int:
        """Execute random actions for real and fit the model on them.

        Returns:
            The steps executed: at least ``executions``, unless ``seconds`` ran out.
        """
        return self.engine.warm_up(executions, seconds=seconds)

    def learn_from(self, recorded: Transitions) -> None:
        """Start from real steps that were recorded elsewhere; see :meth:`wmrl_gym.wrappers.WorldModelWrapper.learn_from`.

        The warm-up is that much shorter, and left out where they fit the model. Demonstrations alone do not show what mistakes
        lead to: :meth:`warm_up` adds random actions in any case.

        Raises:
            TypeError: no transitions, or a model that does not learn.
            ValueError: transitions of another environment.
        """
        self.engine.learn_from(recorded)

    @property
    def last_cost(self) -> dict[str, float]:
        """What the run has cost so far; see :class:`~wmrl_gym.engine.options.Cost`."""
        return cost_of(self.engine)

    def stats(self) -> dict[str, float]:
        """What a log should say: real executions, imagined steps, seconds, and the model's own measures."""
        return engine_stats(self.engine)

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, but for what the model has learnt (``model.save``)."""
        return {
            "engine": self.engine.state_dict(),
            "observation": self._observation,
            "started": self._started.copy(),
            "ended": self._ended.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.engine.load_state_dict(state["engine"])
        self._observation = state["observation"]
        self._started, self._ended = state["started"].copy(), state["ended"].copy()

    def close_extras(self, **kwargs: Any) -> None:
        """Stop real execution."""
        self.engine.close()

    def _reset_slots(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, dict[str, Any]]:
        return self.engine.reset(slots, seeds, options)

    def _step_slots(self, slots: NDArray[np.int64], actions: Any) -> SlotStep:
        result = self.engine.step(slots, actions)
        return result.observation, result.reward, result.terminated, result.truncated, result.info
