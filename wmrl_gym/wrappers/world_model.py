"""Any environment, stepped in a world model, with a share of real episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ClosedEnvironmentError
from gymnasium.utils import RecordConstructorArgs
from numpy.typing import NDArray

from wmrl_gym.data import Transitions
from wmrl_gym.engine.arguments import SharedModel, build_engine, execution_of, model_of, time_limit
from wmrl_gym.engine.gym_execution import EnvExecution
from wmrl_gym.engine.options import EngineOptions, takes_options
from wmrl_gym.factored import Step
from wmrl_gym.samples import checked_action, sample_at
from wmrl_gym.world_models import WorldModel

_ONLY = np.zeros(1, np.int64)


class EngineWrapper(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """What the wrappers of one environment with a world model have in common.

    Below, a step is a batch of one; the outermost of these wrappers makes Python values of it. A wrapper of another kind between
    two of them sees, and may change, those values.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._space = env.observation_space

    made_by_id = False
    """Whether ``gymnasium.make(id, world_model=...)`` put this wrapper here, so that the id and its arguments make it again."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, imagined or real.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after the end of an episode.
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
            ValueError: an action that is not finite or none of the action space.
        """
        step = self.batched_step(action)
        observation = sample_at(self._space, step.observation, 0)
        info: dict[str, Any] = step.info.single()  # type: ignore[attr-defined]
        return observation, step.reward.item(), step.terminated.item(), step.truncated.item(), info

    def batched_step(self, action: Any) -> Step:
        """One step as a batch of one, whose info is a :class:`~wmrl_gym.engine.info.StepInfo`."""
        raise NotImplementedError

    @property
    def action_masks(self) -> Callable[[], NDArray[np.bool_]]:
        """Which actions are legal now, for algorithms that ask (MaskablePPO): a method that returns bool, shape (n,).

        There where the environment has it, or the model predicts masks. In an imagined episode it is what the model predicts.
        """
        masks: Callable[[], NDArray[np.bool_]] = self.env.get_wrapper_attr("action_masks")
        return masks

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """How this environment is made again: by ``gymnasium.make(env.spec)``. It shares the world model."""
        if not self.made_by_id:
            return super().spec
        made = self.unwrapped.spec
        if made is None or self.env.spec is None:
            return None
        given = {**made.kwargs, "world_model": SharedModel(made.kwargs["world_model"])}
        return replace(
            self.env.spec, id=made.id, entry_point=made.entry_point, kwargs=given, vector_entry_point=made.vector_entry_point
        )


@takes_options
class WorldModelWrapper(EngineWrapper):
    """Swaps real ``step()`` execution for a world model's predictions, except in anchor episodes.

    Each ``reset()`` starts from the environment's own real start observation and decides whether the episode is an *anchor*. In
    other episodes ``step()`` never touches the environment. In a blocking anchor it does, and the model predicts the same steps
    on the side; in a background anchor the episode is imagined, and its actions are executed in the background. Until the model
    knows anything (``model.fitted``), every episode is real.

    Args:
        env: any Gymnasium environment; of a factored one only the outcomes are predicted.
        model: the world model.
        {options}

    Raises:
        TypeError: a vector environment, which has an engine of its own, or something else that is no environment; or a model
            that is none, or cannot replace what it is to.
        ValueError: an argument out of range, or a model that is bound to other spaces.

    >>> from wmrl_gym.world_models import Prediction
    >>> class Still(WorldModel):  # predicts that nothing moves and every step pays 1
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         n = len(state)
    ...         no, yes = np.zeros(n, bool), np.ones(n, bool)
    ...         return state, Prediction(state, np.ones(n), np.full(n, np.nan), no, no, yes, yes)
    >>> env = WorldModelWrapper(gym.make("CartPole-v1"), Still(), anchors=0.0)
    >>> start, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> bool((observation == start).all()), reward, info["anchor"], info["wm_reward"], "real_reward" in info
    (True, 1.0, False, 1.0, False)
    """

    def __init__(self, env: gym.Env[Any, Any], model: WorldModel, **options: Any) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"WorldModelWrapper wraps one environment, got {type(env).__name__}; "
                "for many environments there is wmrl_gym.wrappers.vector.WorldModelVectorEnv"
            )
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, model=SharedModel(model), **options)
        super().__init__(env)
        chosen = EngineOptions.of(options, where="WorldModelWrapper")
        self.model = model_of(model)
        real = execution_of(env, background=chosen.anchor_mode == "background")
        self.engine = build_engine(real, self.model, chosen, num_slots=1, limit=time_limit(env))
        self._action_space_below, self._shows_text = env.action_space, env.render_mode == "ansi"
        self.closed = False
        self._over = True
        self._real = False
        self._transcript: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; ``seed`` begins the run anew from it: start, anchor choices, imagination, pair numbers.

        Raises:
            gymnasium.error.ClosedEnvironmentError: after :meth:`close`.
        """
        self._check_open("reset()")
        if seed is not None:
            self.engine.reseed(seed)
        observation, info = self.engine.reset(_ONLY, [None], options)
        if seed is not None and not isinstance(self.engine.real, EnvExecution):
            gym.Env.reset(self.unwrapped, seed=seed)  # its own generator, as if it had been reset itself
        self._over = False
        self._real = self.engine.runs_for_real(0)
        self._transcript = [f"episode of context {int(info['context'][0])}, {'real' if self._real else 'imagined'}"]
        return sample_at(self.env.observation_space, observation, 0), info.single()

    def batched_step(self, action: Any) -> Step:
        """See :meth:`EngineWrapper.batched_step`."""
        self._check_open("step()")
        if self._over:
            raise gym.error.ResetNeeded("the episode is over, or none has begun: call reset() before step()")
        result = self.engine.step(_ONLY, checked_action(self._action_space_below, action))
        self._over = bool(result.terminated[0] or result.truncated[0])
        if self._shows_text:
            observation = sample_at(self._space, result.observation, 0)
            text = observation.get("feedback", "") if isinstance(observation, dict) else ""
            self._transcript.append(
                f"--- step {len(self._transcript)}\n{action}\n---\n{text}\nreward: {float(result.reward[0]):.4f}"
            )
        return result

    @property
    def action_masks(self) -> Callable[[], NDArray[np.bool_]]:
        """See :attr:`EngineWrapper.action_masks`."""
        if not self.engine.masked:
            raise AttributeError("neither the environment nor the model says which actions are legal: it has no action_masks")
        return self._masks

    def _masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now: bool, shape (n,).

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after the end of an episode.
            WorldModelError: the episode is imagined, and the model does not predict masks.
        """
        if self._over:
            raise gym.error.ResetNeeded("the episode is over, or none has begun: call reset() before action_masks()")
        return self.engine.action_masks(0)

    @property
    def np_random_seed(self) -> int:
        """The seed that was given to :meth:`reset`, or drawn."""
        return self.engine.seed

    def learn_from(self, recorded: Transitions) -> None:
        """Begin with real steps from another source, such as demonstrations.

        The model is fitted to them at once, and with ``start_states="buffer"`` imagined episodes start at them too. They are no
        anchors: no pair is made of them, and they count as no executions. A state saved after it holds them, so that a resumed
        run does without them.

        Args:
            recorded: of this environment: ``Episode.transitions()``, or ``MinariEpisodes(source).read_many(numbers)``.

        Raises:
            TypeError: no transitions, or a model that does not learn.
            ValueError: transitions of another environment.
        """
        self.engine.learn_from(recorded)

    def render(self) -> Any:
        """The environment's own rendering in real episodes; in mode "ansi" the transcript of imagined ones, None in other modes.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if not self._transcript:
            raise gym.error.ResetNeeded("call reset() before render()")
        if self._real and isinstance(self.engine.real, EnvExecution):
            return self.env.render()
        return "\n".join(self._transcript) if self.env.render_mode == "ansi" else None

    @property
    def last_cost(self) -> dict[str, float]:
        """What the run has cost so far; see :class:`~wmrl_gym.engine.ledger.Cost`."""
        return self.engine.cost.as_dict()

    def stats(self) -> dict[str, float]:
        """What a log should say: real executions, imagined steps, seconds, and the model's own measures."""
        return self.engine.stats()

    def state_dict(self) -> dict[str, Any]:
        """All that changes in a run, but for what the model has learnt (``model.save``)."""
        shown = {"real": self._real, "transcript": list(self._transcript)}
        return {"engine": self.engine.state_dict(), "over": self._over, "shown": shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.engine.load_state_dict(state["engine"])
        self._over = bool(state["over"])
        self._real, self._transcript = bool(state["shown"]["real"]), list(state["shown"]["transcript"])

    def close(self) -> None:
        """Stop real execution and close the environment."""
        self.closed = True
        self.engine.close()
        super().close()

    def _check_open(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what} of an environment that was closed: make a new one")
