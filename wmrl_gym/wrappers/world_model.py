"""Any environment, stepped in a world model, with a share of real episodes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from wmrl_gym.data import Transitions
from wmrl_gym.engine.arguments import execution_of, schedule_of, time_limit
from wmrl_gym.engine.engine import Engine
from wmrl_gym.engine.episodes import Schedule
from wmrl_gym.engine.execution import EnvExecution
from wmrl_gym.engine.options import AnchorMode, EngineOptions, Horizon, StartFrom, UpdateMode
from wmrl_gym.engine.reward_only import Replaces, engine_of
from wmrl_gym.engine.uncertainty import UncertaintyKind
from wmrl_gym.slots import sample_at, stack_samples
from wmrl_gym.world_models import PairKind, WorldModel

_ONLY = np.zeros(1, np.int64)


class WorldModelWrapper(gym.Wrapper[Any, Any, Any, Any]):
    """Swaps real ``step()`` execution for a world model's predictions, except in anchor episodes.

    Each ``reset()`` starts from the environment's own real start observation and decides whether the episode is an *anchor*. In
    other episodes ``step()`` never touches the environment. In a blocking anchor it does, and the model predicts the same steps
    on the side; in a background anchor the episode is imagined, and its actions are executed behind it. Until the model knows
    anything (``model.fitted``), every episode is real.

    Args:
        env: any Gymnasium environment; of a factored one only the outcomes are predicted.
        model: the world model.
        anchors: share of the episodes that are anchors, in [0, 1], or a schedule.
        group_size: consecutive episodes that share their start and the anchor decision (GRPO's groups); None is 1, or a
            schedule's own.
        anchor_mode: "blocking" or "background".
        pairs: how anchor predictions are made, "teacher_forced" or "open_loop"; None takes the model's own choice.
        update_every: real transitions between two updates of the model; 0 never updates it.
        update_mode: "blocking", or "background": a model that allows it learns on another thread while episodes go on.
        max_model_steps: imagined episodes are truncated after so many steps: a number, or a function of how many real
            transitions there have been (a horizon that grows as the model gets better).
        start_states: "real": imagined episodes start at a real reset. "buffer": at an observation that really occurred, so that
            short ones reach everywhere; anchors still start at a real reset.
        replaces: "step": the model predicts whole steps. "reward": all steps are real, and the model (a
            :class:`~wmrl_gym.world_models.RewardModel`) says what they are worth, except in anchors.
        uncertainty: what a schedule by uncertainty goes by: what the "model" says of its errors, or the measured "disagreement".
        seed: of anchor choices and imagination, until ``reset(seed=...)`` gives another; None draws one.

    Raises:
        TypeError: a vector environment, which has an engine of its own, or something else that is no environment; or a model
            that cannot replace what it is to.
        ValueError: an argument out of range.

    >>> from wmrl_gym.world_models import Prediction
    >>> class Still(WorldModel):  # believes that nothing moves and every step pays 1
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         n = len(state)
    ...         no, yes = np.zeros(n, bool), np.ones(n, bool)
    ...         return state, Prediction(state, np.ones(n), np.full(n, np.nan), no, no, yes, yes)
    >>> env = WorldModelWrapper(gym.make("CartPole-v1"), Still(), anchors=0.0)
    >>> start, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> bool((observation == start).all()), reward, info["anchor"], info["wm_reward"]
    (True, 1.0, False, 1.0)
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        model: WorldModel,
        *,
        anchors: float | Schedule = 0.1,
        group_size: int | None = None,
        anchor_mode: AnchorMode = "blocking",
        pairs: PairKind | None = None,
        update_every: int = 32,
        update_mode: UpdateMode = "blocking",
        max_model_steps: Horizon = None,
        start_states: StartFrom = "real",
        max_in_flight: int = 64,
        replaces: Replaces = "step",
        uncertainty: UncertaintyKind = "model",
        seed: int | None = None,
    ) -> None:
        if not isinstance(env, gym.Env):
            raise TypeError(
                f"WorldModelWrapper wraps one environment, got {type(env).__name__}; "
                "for many environments there is wmrl_gym.wrappers.vector.WorldModelVectorEnv"
            )
        super().__init__(env)
        options = EngineOptions(
            num_slots=1,
            anchor_mode=anchor_mode,
            pairs=model.pairs if pairs is None else pairs,
            update_every=update_every,
            update_mode=update_mode,
            max_model_steps=max_model_steps,
            start_states=start_states,
            max_episode_steps=time_limit(env),
            max_in_flight=max_in_flight,
            uncertainty=uncertainty,
            seed=seed,
        )
        self.model = model
        real = execution_of(env, background=anchor_mode == "background")
        model.bind(real.interface)
        self.engine = engine_of(replaces, real, model, schedule=schedule_of(anchors, group_size), options=options)
        self._over = True
        self._real = False
        self._transcript: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; ``seed`` begins the run anew from it: start, anchor choices, imagination."""
        if seed is not None:
            self.engine.reseed(seed)
        observation, info = self.engine.reset(_ONLY, [None], options)
        self._over = False
        self._real = self.engine.runs_for_real(0)
        self._transcript = [f"episode of context {int(info['context'][0])}, {'real' if self._real else 'imagined'}"]
        return self._single(observation), _scalars(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step, imagined or real.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or after the end of an episode.
        """
        if self._over:
            raise gym.error.ResetNeeded("the episode is over, or none has begun: call reset() before step()")
        result = self.engine.step(_ONLY, stack_samples(self.action_space, [action]))
        terminated, truncated = bool(result.terminated[0]), bool(result.truncated[0])
        self._over = terminated or truncated
        observation, reward = self._single(result.observation), float(result.reward[0])
        if self.env.render_mode == "ansi":
            told = observation.get("feedback", "") if isinstance(observation, dict) else ""
            self._transcript.append(f"--- step {len(self._transcript)}\n{action}\n---\n{told}\nreward: {reward:.4f}")
        return observation, reward, terminated, truncated, _scalars(result.info)

    def learn_from(self, recorded: Transitions) -> None:
        """Start from real steps that were recorded elsewhere, such as demonstrations.

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
        """What the run has cost so far; see :class:`~wmrl_gym.engine.options.Cost`."""
        return cost_of(self.engine)

    def stats(self) -> dict[str, float]:
        """What a log should say: real executions, imagined steps, seconds, and the model's own measures."""
        return engine_stats(self.engine)

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
        self.engine.close()
        super().close()

    def _single(self, observation: Any) -> Any:
        return sample_at(self.env.observation_space, observation, 0)


def _scalars(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value[0].item() if isinstance(value[0], np.generic) else value[0] for key, value in info.items()}


def cost_of(engine: Engine) -> dict[str, float]:
    """The engine's costs by name."""
    cost = engine.cost
    return {name: float(getattr(cost, name)) for name in type(cost).__dataclass_fields__}


def engine_stats(engine: Engine) -> dict[str, float]:
    """The costs, the anchors' state and the model's measures, with the prefixes that logs group by."""
    costs = {f"cost/{name}": value for name, value in cost_of(engine).items()}
    anchors = {
        "anchors/fraction": engine.episodes.anchor_fraction,
        "anchors/pairs": float(engine.stream.added),
        "anchors/in_flight": float(engine.in_flight),
        "anchors/unknown": float(engine.unknown),
    }
    return costs | anchors | engine.measures
