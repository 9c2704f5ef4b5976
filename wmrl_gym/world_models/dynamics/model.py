"""A world model of any environment whose observations are vectors: a probabilistic ensemble of neural networks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.data.transitions import Transitions
from wmrl_gym.world_models.base import DataSpan, Interface, PairKind, Prediction, WorldModel, WorldModelError
from wmrl_gym.world_models.dynamics.checkpoint import Checkpoint
from wmrl_gym.world_models.dynamics.fitting import FitSettings, fit
from wmrl_gym.world_models.dynamics.prediction import Draws, EnsemblePrediction, FittedEnsemble, Propagation
from wmrl_gym.world_models.dynamics.vectors import ActionCodec, Experience, ObservationCodec, Replay
from wmrl_gym.world_models.ranges import check_all_whole, check_not_negative, check_positive, check_widths


@dataclass(frozen=True, slots=True)
class DynamicsState:
    """State of B rollouts.

    Args:
        observation: float64, shape (B, D). Where each stands.
        seed: int64, shape (B,). Each rollout's own randomness, so that it does not depend on its neighbours in a batch.
    """

    observation: NDArray[np.float64]
    seed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ComputedUpdate:
    """What was computed from new transitions, before it is applied.

    Args:
        replay: what is kept then.
        fitted: the fit; None where there is still too little.
        learnt: of all transitions ever given, how many the fit has seen.
        measures: for a log.
    """

    replay: Replay
    fitted: FittedEnsemble | None
    learnt: int
    measures: dict[str, float]


class EnsembleDynamics(WorldModel):
    """Learns what a step does, from real transitions: next observation, reward and termination, and how sure it is.

    Each member of the ensemble is a network with Gaussian heads for the *change* of the observation, and a smaller one for the
    reward and the termination given where the step led. Members train on bootstrap samples, stop where held-out data say so, and
    the best ones (the elites) answer. It follows PETS (arXiv 1805.12114) and MBPO (arXiv 1906.08253), but it learns
    termination too. Observations are Box or Dict-of-Box, actions Box, Discrete or MultiDiscrete. It assumes that the observation
    says all about the environment's state.

    Args:
        hidden: widths of the hidden layers.
        n_members: networks in the ensemble.
        n_elites: of them, how many answer.
        propagation: how a rollout goes through the ensemble. ``"ts1"``: each step is sampled from an elite drawn anew;
            ``"ts_inf"``: each rollout keeps the elite it began with; ``"mean"``: the expectation over all elites, no noise.
        min_transitions: real transitions before the first fit; until then :attr:`fitted` is False and its answers are unknown.
        capacity: newest transitions kept, so that nothing is forgotten as new ones are learnt.
        refit_share: it learns once so many transitions are new, as a share of those that it has learnt from (at most
            ``capacity``). 0 is at each update.
        gradient_steps: on each of the two networks, for each new transition; four times as many in the first fit, from nothing.
        max_gradient_steps: on each of the two networks, in one update.
        batch_size: transitions in a gradient step, for each member.
        learning_rate: of Adam, at the beginning of each update; it falls to a twentieth.

    Raises:
        ValueError: an argument out of range.

    >>> import gymnasium as gym
    >>> from wmrl_gym.wrappers import WorldModelWrapper
    >>> env = WorldModelWrapper(gym.make("Pendulum-v1"), EnsembleDynamics(min_transitions=60, max_gradient_steps=100), seed=0)
    >>> observation, info = env.reset(seed=0)
    >>> info["anchor"]  # it knows nothing yet, so episodes are real
    True
    >>> for _ in range(200):
    ...     observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    >>> observation, info = env.reset()
    >>> info["anchor"], env.model.fitted
    (False, True)
    """

    pairs: ClassVar[PairKind] = "teacher_forced"
    learns_in_background: ClassVar[bool] = True

    def __init__(
        self,
        hidden: Sequence[int] = (128, 128),
        *,
        n_members: int = 5,
        n_elites: int = 4,
        propagation: Propagation = "ts1",
        min_transitions: int = 400,
        capacity: int = 100_000,
        refit_share: float = 0.2,
        gradient_steps: float = 1.0,
        max_gradient_steps: int = 2_000,
        batch_size: int = 128,
        learning_rate: float = 3e-3,
    ) -> None:
        at_least = {"min_transitions": (min_transitions, 2), "max_gradient_steps": (max_gradient_steps, 1)}
        at_least |= {"batch_size": (batch_size, 1), "n_members": (n_members, 1), "n_elites": (n_elites, 1)}
        check_all_whole(at_least | {"capacity": (capacity, 1)})
        if n_elites > n_members:
            raise ValueError(f"n_elites must be at most n_members = {n_members}, got {n_elites}")
        check_widths(hidden, networks=n_members)
        if propagation not in ("ts1", "ts_inf", "mean"):
            raise ValueError(f'propagation must be "ts1", "ts_inf" or "mean", got {propagation!r}')
        if capacity < min_transitions:
            raise ValueError(f"capacity must be at least min_transitions = {min_transitions}, got {capacity}")
        check_positive("gradient_steps", gradient_steps)
        check_positive("learning_rate", learning_rate)
        check_not_negative("refit_share", refit_share)
        self.propagation: Propagation = propagation
        self.refit_share = float(refit_share)
        self.min_transitions = min_transitions
        self.gradient_steps = float(gradient_steps)
        self.max_gradient_steps = max_gradient_steps
        self.settings = FitSettings(tuple(int(width) for width in hidden), n_members, n_elites, batch_size, learning_rate)
        self.capacity = capacity
        self._replay = Replay(capacity, n_members)
        self._fitted: FittedEnsemble | None = None
        self._learnt = 0
        self._spaces: tuple[str, str] | None = None
        self._contexts: tuple[str, ...] = ()
        self._codecs: tuple[ObservationCodec, ActionCodec] | None = None

    def bind(self, interface: Interface) -> None:
        """Take over the environment's spaces.

        Raises:
            WorldModelError: spaces that it cannot represent, or others than those of what it has learnt.
        """
        codecs = ObservationCodec(interface.observation_space), ActionCodec(interface.action_space)
        _check_spaces(self._spaces, interface)
        super().bind(interface)
        self._codecs = codecs

    @property
    def fitted(self) -> bool:
        return self._fitted is not None

    @property
    def transitions(self) -> int:
        """How many real transitions it was ever given."""
        return self._replay.added

    @property
    def span(self) -> DataSpan:
        """Which transitions the present fit was trained on; contexts have a factored environment's names, else their numbers."""
        if self._fitted is None:
            return DataSpan(0, 0, 0, {})
        first = max(0, self._learnt - self.capacity)
        return DataSpan(first, self._learnt, self._learnt - first, self._replay.by_context(self._learnt, self._contexts))

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> DynamicsState:
        vector = self._bound[0].encode(observation)
        return DynamicsState(vector, rng.integers(2**63 - 1, size=len(vector)))

    def step(self, state: DynamicsState, action: Any, rng: np.random.Generator) -> tuple[DynamicsState, Prediction]:
        observation_codec, action_codec = self._bound
        # One draw a step, mixed into each rollout's own seed: independent of the batch, and new for each branch of a rollout.
        key, n = int(rng.integers(2**63 - 1)), len(state.seed)
        no, yes = np.zeros(n, bool), np.ones(n, bool)
        fitted = self._fitted
        if fitted is None:
            same, unknown = observation_codec.decode(state.observation), np.full(n, np.nan)
            return state, Prediction(same, np.zeros(n), unknown, no, no.copy(), yes, no.copy(), {"disagreement": unknown.copy()})
        draws = Draws.of(self.propagation, state.seed, key, n_elites=len(fitted.elites), size=observation_codec.size)
        inputs = fitted.inputs(state.observation, action_codec.encode(action))
        after = state.observation + fitted.delta(inputs, draws)
        after = np.minimum(np.maximum(after, fitted.bounds.low, out=after), fitted.bounds.high, out=after)
        predicted = observation_codec.decode(after)
        vector = observation_codec.encode(predicted)
        outcome = fitted.outcomes(inputs, vector, draws.rows)
        reward = outcome.reward
        if self.interface is not None:
            low, high = self.interface.reward_range
            reward = np.minimum(np.maximum(reward, low, out=reward), high, out=reward)
        ends = outcome.p_terminated > draws.chance
        return DynamicsState(vector, state.seed), EnsemblePrediction(predicted, reward, outcome.doubt, ends, no, yes, yes.copy())

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        """Learn from new transitions, and from those of before that are kept.

        Raises:
            WorldModelError: observations that are not finite.
        """
        return self.apply_update(self.compute_update(transitions, rng))

    def compute_update(self, transitions: Transitions, rng: np.random.Generator) -> ComputedUpdate:
        replay = self._replay
        if len(transitions):
            replay = replay.joined(self._experience(transitions, rng))
        new, known = replay.added - self._learnt, {"wm/transitions": float(replay.added)}
        few = self._fitted is not None and new < self.refit_share * min(self._learnt, self.capacity)
        if len(replay) < self.min_transitions or new == 0 or few:
            return ComputedUpdate(replay, self._fitted, self._learnt, known)
        replay = replay.merged()
        kept = replay.kept
        assert kept is not None
        each = self.gradient_steps * (_FROM_NOTHING if self._fitted is None else 1)
        steps = min(self.max_gradient_steps, max(1, math.ceil(each * new)))
        fitted, measures = fit(kept, before=self._fitted, steps=steps, settings=self.settings, rng=rng)
        return ComputedUpdate(replay, fitted, replay.added, known | measures)

    def apply_update(self, computed: Any) -> dict[str, float]:
        assert isinstance(computed, ComputedUpdate)
        self._replay, self._fitted, self._learnt = computed.replay, computed.fitted, computed.learnt
        if self._replay.added and self.interface is not None:
            self._spaces = _spaces_of(self.interface)
            self._contexts = () if self.interface.factored is None else tuple(self.interface.factored.contexts)
        return computed.measures

    def _experience(self, transitions: Transitions, rng: np.random.Generator) -> Experience:
        observation_codec, action_codec = self._bound
        before = observation_codec.encode(transitions.observation)
        after = observation_codec.encode(transitions.next_observation)
        unusable = ~(np.isfinite(before) & np.isfinite(after)).all(axis=1)
        if unusable.any():
            row = int(np.flatnonzero(unusable)[0])
            raise WorldModelError(f"transition {row} has an observation that is not finite: {before[row]} -> {after[row]}")
        held_out, counts = self._replay.draw(len(transitions), rng)
        return Experience(
            before.astype(np.float32),
            action_codec.encode(transitions.action),
            (after - before).astype(np.float32),
            np.where(transitions.reward_valid, transitions.reward, 0.0).astype(np.float32),
            transitions.reward_valid.copy(),
            transitions.terminated.copy(),
            held_out,
            counts,
            transitions.context.astype(np.int64),
        )

    def save(self, path: str | Path) -> None:
        """Write networks, kept transitions and settings: ``dynamics.safetensors`` and ``dynamics.json`` below ``path``."""
        settings = asdict(self.settings) | {name: getattr(self, name) for name in _SETTINGS}
        replay = self._replay
        saved = Checkpoint(settings, self._spaces, self._contexts, replay.added, self._learnt, replay.everything, self._fitted)
        saved.write(Path(path), trained_on=self.span)

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote, settings included.

        Raises:
            WorldModelError: the folder holds no such model, or one of another environment.
        """
        saved = Checkpoint.read(Path(path))
        interface = self.interface
        if interface is not None:
            _check_spaces(saved.spaces, interface)
        try:
            EnsembleDynamics.__init__(self, **saved.settings)
        except (TypeError, ValueError) as error:
            raise WorldModelError(f"the model in {path} has settings that no EnsembleDynamics has: {error}") from error
        self._fitted, self._spaces, self._contexts, self._learnt = saved.fitted, saved.spaces, saved.contexts, saved.learnt
        self._replay = Replay(self.capacity, self.settings.n_members, kept=saved.kept, added=saved.added)
        if interface is not None:
            self.bind(interface)

    @property
    def _bound(self) -> tuple[ObservationCodec, ActionCodec]:
        if self._codecs is None:
            raise WorldModelError(
                "EnsembleDynamics is not bound to an environment: wrap one in WorldModelWrapper, or call bind()"
            )
        return self._codecs


_FROM_NOTHING = 4
"""How many times as many gradient steps a transition the first fit takes."""
_SETTINGS = ("propagation", "min_transitions", "capacity", "refit_share", "gradient_steps", "max_gradient_steps")


def _spaces_of(interface: Interface) -> tuple[str, str]:
    return str(interface.observation_space), str(interface.action_space)


def _check_spaces(learnt: tuple[str, str] | None, interface: Interface) -> None:
    for kind, was, now in zip(("observations", "actions"), learnt or (), _spaces_of(interface), strict=False):
        if was != now:
            raise WorldModelError(f"this EnsembleDynamics was trained on {kind} in {was}, and the environment has {now}")
