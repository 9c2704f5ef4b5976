"""How good a world model is: its predictions against real steps that it has not learnt from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, rankdata

from wmrl_gym import batch
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Factored, Outcome, Step
from wmrl_gym.world_models.base import Interface, Observed, Prediction, RewardModel, WorldModel, WorldModelError
from wmrl_gym.world_models.evaluation.report import (
    Calibration,
    FidelityReport,
    HorizonFidelity,
    RewardFidelity,
    StatusFidelity,
    TerminationFidelity,
)

_LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_MOST_SHOWN = 2_000
_EXCEPTION = re.compile(r"^(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Warning|Exit|Interrupt|Iteration))\b", re.MULTILINE)


def evaluate(
    model: WorldModel,
    data: Transitions,
    *,
    interface: Interface | None = None,
    groups: NDArray[np.int64] | None = None,
    horizons: Sequence[int] = (1, 2, 5, 10, 20),
    max_starts: int = 256,
    batch_size: int = 1024,
    seed: int = 0,
) -> FidelityReport:
    """Compare a world model with real steps. The model learns nothing from them.

    One step: each real step is predicted from its real observation. Of a factored environment each *attempt* is predicted by
    itself, and its value compared, since a reward that is paid at the end would hide the turns before; what its gate answers, or
    infrastructure lost, is left out. Several steps: rollouts along real actions, wherever a step's next observation is the next
    step's observation. What the model does not answer, such as while its server is down, is counted and not scored. A model of
    the reward only judges the real steps of each episode in turn, and is compared where it pays.

    Args:
        model: a model that has learnt something.
        data: real steps that it has not learnt from, episode after episode.
        interface: of the environment; None takes the one that the model is bound to. Afterwards the model is bound to it.
        groups: int64, shape (N,). Steps that are compared with each other; None takes the steps of a context.
        horizons: steps ahead, each at least 1.
        max_starts: the most rollouts.
        batch_size: steps predicted at once.
        seed: of the model's randomness, and of the choice of starts.

    Raises:
        WorldModelError: the model is not bound or knows nothing yet; none of the steps has a real reward; or a factored
            environment's data hold no attempts.
        ValueError: there are no steps, or an argument is out of range.

    >>> from wmrl_gym.world_models import Prediction
    >>> class Still(WorldModel):  # predicts that nothing moves and every step pays 1
    ...     def begin(self, observation, info, rng):
    ...         return observation
    ...     def step(self, state, action, rng):
    ...         n = len(state)
    ...         no, yes = np.zeros(n, bool), np.ones(n, bool)
    ...         return state, Prediction(state, np.ones(n), np.full(n, np.nan), no, no, yes, yes)
    >>> at, no = np.arange(4.0)[:, None], np.zeros(4, bool)
    >>> data = Transitions(at, at, np.full(4, 0.5), at + 1, no, no, ~no, np.zeros(4, np.int64))
    >>> space = gym.spaces.Box(0, 9, (1,), np.float64)
    >>> report = evaluate(Still(), data, interface=Interface(space, space), horizons=(1, 2))
    >>> report.reward.bias, report.horizon.starts
    (0.5, 3)
    """
    interface = model.interface if interface is None else interface
    _check(model, data, interface, groups=groups, horizons=horizons)
    assert interface is not None
    factored, rng = interface.factored, np.random.default_rng(seed)
    predicted, horizon = _ask(model, data, interface, options=_Options(tuple(horizons), max_starts, batch_size), rng=rng)
    real, counted = data.reward, data.reward_valid
    reward_only = isinstance(model, RewardModel)
    if reward_only:  # it is given what is observed, and predicts rewards for some steps only
        counted = counted & predicted.due
    if factored is not None:
        assert data.outcome is not None
        real, counted = data.outcome.value, data.outcome.known & ~factored.gate(data.attempt)[0]
    both = counted & predicted.valid
    if not counted.any():
        raise WorldModelError(f"none of the {len(data)} steps has a real reward to compare with")
    chosen = np.flatnonzero(both)
    shown = chosen if len(chosen) <= _MOST_SHOWN else np.sort(rng.choice(chosen, _MOST_SHOWN, replace=False))
    return FidelityReport(
        model=type(model).__name__,
        transitions=len(data),
        reward=_rewards(predicted.reward, real, both=both, counted=counted, groups=data.context if groups is None else groups),
        calibration=_calibration(predicted.reward[both] - real[both], predicted.std[both]),
        status=None if factored is None else _statuses(factored, predicted, data=data, both=both),
        horizon=horizon,
        termination=None if factored is not None or reward_only else _terminations(predicted.terminated, data.terminated),
        scatter=np.stack([real[shown], predicted.reward[shown]], axis=1),
    )


@dataclass(frozen=True, slots=True)
class _Options:
    """Arguments of :func:`evaluate`."""

    horizons: tuple[int, ...]
    max_starts: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class _Predicted:
    """A model's predictions of N steps; ``status`` and ``feedback`` are None where it predicts none."""

    reward: NDArray[np.float64]
    std: NDArray[np.float64]
    due: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    terminated: NDArray[np.bool_]
    status: NDArray[np.int64] | None
    feedback: NDArray[np.object_] | None


@dataclass(frozen=True, slots=True)
class _Row:
    """State of recorded attempts: int64, shape (B,), their place in the data."""

    row: NDArray[np.int64]


def _check(
    model: WorldModel,
    data: Transitions,
    interface: Interface | None,
    *,
    groups: NDArray[np.int64] | None,
    horizons: Sequence[int],
) -> None:
    if interface is None:
        raise WorldModelError(f"{type(model).__name__} is not bound to an environment: pass interface=...")
    if len(data) == 0:
        raise ValueError("there are no real steps to compare with")
    if groups is not None and len(groups) != len(data):
        raise ValueError(f"groups must have one number for each of the {len(data)} steps, got {len(groups)}")
    if not horizons or min(horizons) < 1:
        raise ValueError(f"horizons must be at least one number of steps, each at least 1, got {tuple(horizons)}")
    if interface.factored is not None and (data.attempt is None or data.outcome is None):
        raise WorldModelError("steps of a factored environment are compared by their attempts and outcomes; these hold none")


def _ask(
    model: WorldModel, data: Transitions, interface: Interface, *, options: _Options, rng: np.random.Generator
) -> tuple[_Predicted, HorizonFidelity | None]:
    """What the model says of every step, and how far off it is several steps ahead."""
    factored = interface.factored
    try:
        model.bind(interface if factored is None else replace(interface, factored=_each_attempt(factored, data)))
        if not model.fitted:
            raise WorldModelError(f"{type(model).__name__} has learnt nothing yet: fit it before it is evaluated")
        if isinstance(model, RewardModel):
            return _judge(model, data, batch_size=options.batch_size, rng=rng), None
        predicted = _predict(model, data, batch_size=options.batch_size, rng=rng)
        ahead = None if factored is not None else _over_horizons(model, data, interface, options=options, rng=rng)
        return predicted, ahead
    finally:
        model.bind(interface)


def _each_attempt(factored: Factored[Any, Any], data: Transitions) -> Factored[Any, Any]:
    """The environment with other episodes: each is one of the recorded attempts, and pays its value."""

    def begin(observation: Any, info: Any) -> _Row:
        return _Row(np.asarray(info["row"], np.int64))

    def attempt(state: _Row, action: Any) -> Any:
        return batch.take(data.attempt, state.row)

    def advance(state: _Row, attempt: Any, outcome: Outcome) -> tuple[_Row, Step]:
        n = len(state.row)
        info = {"context": data.context[state.row], "predicted_status": outcome.status, "predicted_feedback": outcome.feedback}
        after = batch.take(data.next_observation, state.row)
        no, due = np.zeros(n, bool), np.ones(n, bool)
        return state, Step(after, outcome.value, ~no, no, due, outcome.known, info)

    alone = copy(factored)
    vars(alone).update(begin=begin, attempt=attempt, advance=advance)
    return alone


def _predict(model: WorldModel, data: Transitions, *, batch_size: int, rng: np.random.Generator) -> _Predicted:
    parts: list[_Predicted] = []
    for first in range(0, len(data), batch_size):
        rows = np.arange(first, min(first + batch_size, len(data)))
        info = {"context": data.context[rows], "row": rows}
        state = model.begin(batch.take(data.observation, rows), info, rng)
        _, predicted = model.step(state, batch.take(data.action, rows), rng)
        parts.append(_columns(predicted))
    return batch.concatenate(parts)


def _judge(model: RewardModel, data: Transitions, *, batch_size: int, rng: np.random.Generator) -> _Predicted:
    """The same of a model of the reward, which sees every episode from its beginning; episodes go side by side."""
    over = data.terminated | data.truncated
    over[-1] = True
    ends = np.flatnonzero(over)
    starts = np.concatenate([[0], ends[:-1] + 1])
    order: list[NDArray[np.int64]] = []
    parts: list[_Predicted] = []
    for first in range(0, len(starts), batch_size):
        rows, last = starts[first : first + batch_size], ends[first : first + batch_size]
        info = {"context": data.context[rows], "row": rows}
        state = model.begin(batch.take(data.observation, rows), info, rng)
        while len(rows):
            observed = Observed(batch.take(data.next_observation, rows), data.terminated[rows], data.truncated[rows])
            state, predicted = model.judge(state, batch.take(data.action, rows), observed, rng)
            parts.append(_columns(predicted))
            order.append(rows)
            going = np.flatnonzero(rows < last)
            state, rows, last = batch.take(state, going), rows[going] + 1, last[going]
    return batch.take(batch.concatenate(parts), np.argsort(np.concatenate(order)))


def _columns(predicted: Prediction) -> _Predicted:
    due, valid = predicted.reward_due, predicted.reward_due & predicted.reward_valid
    extra = (predicted.info.get("predicted_status"), predicted.info.get("predicted_feedback"))
    return _Predicted(predicted.reward, predicted.reward_std, due, valid, predicted.terminated, *extra)


def _rewards(
    predicted: NDArray[np.float64],
    real: NDArray[np.float64],
    *,
    both: NDArray[np.bool_],
    counted: NDArray[np.bool_],
    groups: NDArray[np.int64],
) -> RewardFidelity:
    error = predicted[both] - real[both]
    n, asked = int(both.sum()), int(counted.sum())
    if n == 0:
        nan = float("nan")
        return RewardFidelity(0, asked, mae=nan, bias=nan, variance=nan, real_variance=nan, rank_correlation=nan, n_groups=0)
    correlation, n_groups = rank_correlation(predicted[both], real[both], groups=np.asarray(groups)[both])
    return RewardFidelity(
        n=n,
        n_unknown=asked - n,
        mae=float(np.abs(error).mean()),
        bias=float(error.mean()),
        variance=float(error.var()),
        real_variance=float(real[both].var()),
        rank_correlation=correlation,
        n_groups=n_groups,
    )


def rank_correlation(predicted: NDArray[np.float64], real: NDArray[np.float64], groups: NDArray[np.int64]) -> tuple[float, int]:
    """Mean of Spearman's correlation within groups, and of how many groups.

    Groups whose real values are all the same say nothing. A model that ties all of a group's members is worth 0 there: their
    advantages vanish.

    >>> rank_correlation(np.array([1.0, 2.0, 5.0, 5.0]), np.array([0.1, 0.2, 0.3, 0.4]), groups=np.array([0, 0, 1, 1]))
    (0.5, 2)
    """
    correlations: list[float] = []
    for group in np.unique(groups):
        x, y = rankdata(predicted[groups == group]), rankdata(real[groups == group])
        if np.ptp(y) == 0:
            continue
        x, y = x - x.mean(), y - y.mean()
        scale = float(np.sqrt((x**2).sum() * (y**2).sum()))
        correlations.append(float((x * y).sum()) / scale if scale > 0 else 0.0)
    return (float(np.mean(correlations)) if correlations else float("nan")), len(correlations)


def _calibration(error: NDArray[np.float64], std: NDArray[np.float64]) -> Calibration | None:
    given = np.isfinite(std)
    if not given.any():
        return None
    error, std = np.abs(error[given]), std[given]
    # Of what is certain, such as a reward that never changes, rounding is no error.
    slack = 1e-6 * (1.0 + error.max())
    inside = tuple(float((error <= norm.ppf((1 + level) / 2) * std + slack).mean()) for level in _LEVELS)
    return Calibration(len(std), _LEVELS, inside, float(std.mean()))


def _statuses(
    factored: Factored[Any, Any], predicted: _Predicted, *, data: Transitions, both: NDArray[np.bool_]
) -> StatusFidelity | None:
    if predicted.status is None or predicted.feedback is None:
        return None
    assert data.outcome is not None
    n = len(factored.statuses)
    confusion = np.zeros((n, n), np.int64)
    np.add.at(confusion, (data.outcome.status[both], predicted.status[both]), 1)
    named = [
        (really, error_type(str(predicted.feedback[row])))
        for row in np.flatnonzero(both)
        if (really := error_type(str(data.outcome.feedback[row])))
    ]
    right = float(np.mean([really == predicted for really, predicted in named])) if named else float("nan")
    return StatusFidelity(tuple(factored.statuses), confusion, len(named), right)


def error_type(feedback: str) -> str:
    r"""The exception that a traceback ends with; "" where there is none.

    >>> error_type("exit code: 1\nTraceback (most recent call last):\n  File ...\nValueError: bad\nKeyError: 'x'")
    'KeyError'
    """
    found = _EXCEPTION.findall(feedback)
    return str(found[-1]) if found else ""


def _terminations(predicted: NDArray[np.bool_], real: NDArray[np.bool_]) -> TerminationFidelity:
    return TerminationFidelity(int(real.sum()), int(predicted.sum()), int((predicted & real).sum()))


def _over_horizons(
    model: WorldModel, data: Transitions, interface: Interface, *, options: _Options, rng: np.random.Generator
) -> HorizonFidelity | None:
    before, after = (_numbers(interface.observation_space, each) for each in (data.observation, data.next_observation))
    if before is None or after is None:
        return None
    left = _steps_left(before, after, over=data.terminated | data.truncated)
    steps = tuple(sorted({each for each in options.horizons if each <= left.max()}))
    scale = after.std(axis=0)
    moves = scale > 1e-9
    if not steps or not moves.any():
        return None
    starts = np.flatnonzero(left >= steps[-1])
    if len(starts) > options.max_starts:
        starts = np.sort(rng.choice(starts, options.max_starts, replace=False))
    state = model.begin(batch.take(data.observation, starts), {"context": data.context[starts], "row": starts}, rng)
    errors: list[float] = []
    still: list[float] = []
    for ahead in range(1, steps[-1] + 1):
        rows = starts + ahead - 1
        state, prediction = model.step(state, batch.take(data.action, rows), rng)
        if ahead in steps:
            imagined = _numbers(interface.observation_space, prediction.observation)
            assert imagined is not None
            for predicted, into in ((imagined, errors), (before[starts], still)):
                off = ((predicted - after[rows])[:, moves] / scale[moves]) ** 2
                into.append(float(np.sqrt(off.mean())))
    return HorizonFidelity(steps, tuple(errors), tuple(still), len(starts))


def _steps_left(before: NDArray[np.float64], after: NDArray[np.float64], *, over: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each step how many steps follow on each other from it on, itself included: int64, shape (N,)."""
    goes_on = ~over[:-1] & (after[:-1] == before[1:]).all(axis=1)
    left = np.ones(len(over), np.int64)
    for row in range(len(over) - 2, -1, -1):
        if goes_on[row]:
            left[row] = left[row + 1] + 1
    return left


def _numbers(space: gym.Space[Any], observation: Any) -> NDArray[np.float64] | None:
    """The Box entries of B observations: float64, shape (B, D); None where there are none."""
    if isinstance(space, gym.spaces.Dict):
        parts = [_numbers(part, observation[key]) for key, part in space.items()]
        found = [part for part in parts if part is not None]
        return np.concatenate(found, axis=1) if found else None
    if isinstance(space, gym.spaces.Box):
        values = np.asarray(observation, np.float64)
        return values.reshape(len(values), -1)
    return None
