"""Many environments in one world model: one batched prediction a step, a few real executions at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.engine.arguments import build_engine, executions_of, model_of
from wmrl_gym.engine.gym_execution import mask_size
from wmrl_gym.engine.info import KEYS, StepInfo
from wmrl_gym.engine.options import EngineOptions, takes_options
from wmrl_gym.factored import Factored, Step
from wmrl_gym.slots import SlotVectorEnv, put_infos
from wmrl_gym.world_models import WorldModel

_NUMBERS = tuple(name for name, key in KEYS.items() if not key.always)
_FLAGS = tuple(name for name, key in KEYS.items() if key.always)


@takes_options
class WorldModelVectorEnv(SlotVectorEnv):
    """``num_envs`` imagined environments with at most ``max_real`` real executions at once.

    Args:
        source: what is imagined: the parts of a factored environment, the id of a registered environment, or a function that
            makes an environment.
        model: the world model.
        num_envs: imagined environments.
        max_real: real executions at once.
        warmup: real steps with random legal actions before the first episode of a model that knows nothing yet, or as many as the
            model asks for (``min_transitions``), if that is more, less those of :meth:`learn_from`; 0 makes the first episodes
            real instead.
        autoreset_mode: Gymnasium's.
        {options}

    Raises:
        TypeError: ``source`` is none of these, or the model cannot replace what it is to.
        ValueError: an argument out of range.

    >>> from wmrl_gym.world_models import Prediction
    >>> class Still(WorldModel):  # predicts that nothing moves and every step pays 1
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
        warmup: int = 64,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        **options: Any,
    ) -> None:
        if warmup < 0:
            raise ValueError(f"warmup must be 0 or more, got {warmup}")
        chosen = EngineOptions.of(options, where="WorldModelVectorEnv")
        self.model = model_of(model)
        real, limit = executions_of(source, max_real=max_real)
        interface = real.interface
        super().__init__(
            num_envs, interface.observation_space, action_space=interface.action_space, autoreset_mode=autoreset_mode
        )
        self.warmup = warmup
        self.engine = build_engine(real, self.model, chosen, num_slots=num_envs, limit=limit)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in all slots, or in those of ``options["reset_mask"]``.

        Args:
            seed: an int begins the run anew from it (starts are then drawn by episode group, so that the members of a group
                share theirs); a list seeds the start of each slot's episode.
            options: for the environment's start.
        """
        self._check_open("reset()")
        if isinstance(seed, (int, np.integer)):
            self._seed(int(seed))
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
        """Begin with real steps from another source; see :meth:`wmrl_gym.wrappers.WorldModelWrapper.learn_from`.

        The warm-up is that much shorter, and left out where they fit the model. Demonstrations alone do not show what mistakes
        lead to: :meth:`warm_up` adds random actions in any case.

        Raises:
            TypeError: no transitions, or a model that does not learn.
            ValueError: transitions of another environment.
        """
        self.engine.learn_from(recorded)

    @property
    def last_cost(self) -> dict[str, float]:
        """What the run has cost so far; see :class:`~wmrl_gym.engine.ledger.Cost`."""
        return self.engine.cost.as_dict()

    def stats(self) -> dict[str, float]:
        """What a log should say: real executions, imagined steps, seconds, and the model's own measures."""
        return self.engine.stats()

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

    @property
    def action_masks(self) -> Callable[[], NDArray[np.bool_]]:
        """Which actions are legal now, for algorithms that ask (MaskablePPO): a method that returns bool, shape (num_envs, n).

        There where the environment has it, or the model predicts masks. In an imagined episode it is what the model predicts.
        """
        if not self.engine.masked:
            raise AttributeError("neither the environment nor the model says which actions are legal: it has no action_masks")
        return self._masks

    def _masks(self) -> NDArray[np.bool_]:
        """The masks of all slots; all is legal where the action is ignored, since the episode is over.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
            WorldModelError: an episode is imagined, and the model does not predict masks.
        """
        if not self._started.all():
            raise gym.error.ResetNeeded("call reset() before action_masks()")
        anything = np.ones(mask_size(self.single_action_space), bool)
        return np.stack([anything if ended else self.engine.action_masks(at) for at, ended in enumerate(self._ended.tolist())])

    def _reset_slots(
        self, slots: NDArray[np.int64], seeds: list[int | None], options: dict[str, Any] | None
    ) -> tuple[Any, StepInfo]:
        return self.engine.reset(slots, seeds, options)

    def _step_slots(self, slots: NDArray[np.int64], actions: Any) -> Step:
        return self.engine.step(slots, actions)

    def _info_rows(self, info: Any, mask: NDArray[np.bool_]) -> StepInfo:
        rows: StepInfo = info.rows(mask)
        return rows

    def _put_infos(self, infos: dict[str, Any], slots: NDArray[np.int64], info: Any) -> None:
        unknown = [name for name in _NUMBERS if name not in infos and (len(slots) < self.num_envs or not info.has(name))]
        for name in unknown:  # of the slots that are not among these, or of any
            infos[name], infos[f"_{name}"] = np.full(self.num_envs, np.nan), np.zeros(self.num_envs, np.bool_)
        for name in _FLAGS:
            info[name]  # a key that nobody set is there by its default
        put_infos(infos, self.num_envs, slots, info)
        for slot, own in zip(slots.tolist(), info.others(), strict=False):  # none, where there is nothing to say
            self._add_info(infos, own, slot)
