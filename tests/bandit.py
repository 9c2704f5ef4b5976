"""A small factored environment with a known truth: three tasks, sixteen designs, up to three attempts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from wmrl_gym.factored import Factored, Outcome, Step
from wmrl_gym.randomness import draw


@dataclass(frozen=True, slots=True)
class BanditState:
    task: NDArray[np.int64]
    turn: NDArray[np.int64]
    best: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BanditAttempt:
    task: NDArray[np.int64]
    design: NDArray[np.int64]


class Bandit(Factored[BanditState, BanditAttempt]):
    """value = 0.5 + 0.5 * quality[task, design]; a design whose first part is 3 fails (0.1); (0, 0) is refused by the gate (0).

    Args:
        max_turns: attempts an episode.
        reward: "final" or "improvement".
        lose: designs with this first part are lost by infrastructure.
        crash: designs with this first part make ``execute`` raise.
    """

    statuses: ClassVar[tuple[str, ...]] = ("refused", "failed", "valid")
    status_values: ClassVar[tuple[float, ...]] = (0.0, 0.1, float("nan"))
    shows_text: ClassVar[bool] = False
    reward_range = (0.0, 1.0)
    contexts = ("a", "b", "c")

    def __init__(self, *, max_turns: int = 3, reward: str = "final", lose: int | None = None, crash: int | None = None) -> None:
        self.max_turns, self.reward, self.lose, self.crash = max_turns, reward, lose, crash
        self.observation_space = gym.spaces.Box(0.0, 1.0, (5,), np.float32)
        self.action_space = gym.spaces.MultiDiscrete([4, 4])
        self.quality = np.random.default_rng(7).random((3, 4, 4))
        self.executed = 0
        self.running = 0
        self.most_running = 0
        self.closed = False
        self._lock = threading.Lock()

    def start(self, seed: NDArray[np.int64], options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, NDArray[Any]]]:
        task = draw(seed, 3) if options is None or "task" not in options else np.full(len(seed), int(options["task"]))
        state = BanditState(task, np.zeros_like(task), np.zeros(len(task)))
        return self._observe(state), {"context": task}

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]]) -> BanditState:
        turn = np.rint(observation[:, 3] * self.max_turns).astype(np.int64)
        return BanditState(observation[:, :3].argmax(axis=1), turn, observation[:, 4].astype(np.float64))

    def attempt(self, state: BanditState, action: Any) -> BanditAttempt:
        return BanditAttempt(state.task, np.asarray(action))

    def gate(self, attempt: BanditAttempt) -> tuple[NDArray[np.bool_], Outcome]:
        refused = (attempt.design == 0).all(axis=1)
        return refused, _outcome(np.zeros(len(refused), np.int64), np.zeros(len(refused)))

    def execute(self, attempt: BanditAttempt) -> Outcome:
        with self._lock:
            self.executed += len(attempt.task)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            first, second = attempt.design[:, 0], attempt.design[:, 1]
            if self.crash is not None and (first == self.crash).any():
                raise RuntimeError("the executor crashed")
            value = 0.5 + 0.5 * self.quality[attempt.task, first, second]
            refused, _ = self.gate(attempt)
            status = np.where(refused, 0, np.where(first == 3, 1, 2))
            known = np.ones(len(first), bool) if self.lose is None else first != self.lose
            return _outcome(status, np.where(refused, 0.0, np.where(first == 3, 0.1, value)), known)
        finally:
            with self._lock:
                self.running -= 1

    def advance(self, state: BanditState, attempt: BanditAttempt, outcome: Outcome) -> tuple[BanditState, Step]:
        turn = state.turn + 1
        best = np.maximum(state.best, np.where(outcome.known, outcome.value, 0.0))
        lost = ~outcome.known
        over = (turn >= self.max_turns) & ~lost
        due = over if self.reward == "final" else ~lost
        paid = best if self.reward == "final" else best - state.best
        after = BanditState(state.task, turn, best)
        step = Step(
            self._observe(after),
            np.where(due, paid, 0.0),
            over,
            lost.copy(),
            due,
            outcome.known.copy(),
            {"context": state.task, "status": outcome.status},
        )
        return after, step

    def features(self, attempt: BanditAttempt) -> NDArray[np.float32]:
        onehot = np.eye(4, dtype=np.float32)
        task = np.eye(3, dtype=np.float32)[attempt.task]
        return np.hstack([task, onehot[attempt.design[:, 0]], onehot[attempt.design[:, 1]]])

    def text(self, attempt: BanditAttempt) -> Sequence[str]:
        return [""] * len(attempt.task)

    def describe(self, attempt: BanditAttempt, outcome: Outcome) -> Outcome:
        return outcome

    def close(self) -> None:
        self.closed = True

    def _observe(self, state: BanditState) -> NDArray[np.float32]:
        onehot = np.eye(3)[state.task]
        return np.hstack([onehot, (state.turn / self.max_turns)[:, None], state.best[:, None]]).astype(np.float32)


def _outcome(status: NDArray[np.int64], value: NDArray[np.float64], known: NDArray[np.bool_] | None = None) -> Outcome:
    n = len(status)
    known = np.ones(n, bool) if known is None else known
    feedback = np.full(n, "", dtype=object)
    return Outcome(status, value, value.copy(), feedback, known, np.full(n, 0.01), np.full(n, 0.02))


def truth(bandit: Bandit, task: int, designs: Sequence[Sequence[int]]) -> float:
    """The real final reward of an episode."""
    rows = np.asarray(designs)
    return float(bandit.execute(BanditAttempt(np.full(len(rows), task), rows)).value.max())
