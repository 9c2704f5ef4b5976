"""Plays rollouts, as many at once as there are slots; each goes at its own pace."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import numpy as np

from wmrl_gym.factored import Factored, Outcome, Step
from wmrl_gym.rollouts.budget import Budget
from wmrl_gym.rollouts.contract import KNOWN, Agent, AgentFailed, Ending, Player, Rollout, Said, Start, Turn
from wmrl_gym.samples import checked_action, sample_at
from wmrl_gym.threads import Threads


class Rollouts:
    """Many rollouts of a factored environment, really executed.

    Slots take one start after the other. Each asks its agent and executes at its own pace, so that a slow reply or a long script
    holds up nobody else; the factored logic's sandbox bounds how much is executed at once.

    Args:
        factored: the logic, shared by all slots; stays yours to close.
        agent: plays.
        slots: rollouts at once.
        timeout_s: seconds for one whole rollout; None for as long as it takes.
        budget: what all of them may spend together.
        watch: called after each turn, from another thread where :meth:`collect` is used.

    Raises:
        ValueError: an argument out of range.
        TypeError: a bound on tokens with an agent that does not count them.

    >>> from wmrl_gym.envs.autoresearch import AutoResearchText
    >>> from wmrl_gym.rollouts import CallableAgent, groups
    >>> logic = AutoResearchText("diabetes", max_turns=2)
    >>> agent = CallableAgent(lambda start: lambda observation: "DESCRIBE")
    >>> for rollout in Rollouts(logic, agent, slots=2).collect(groups(["diabetes"], [0], size=2)):
    ...     print(rollout.ended, rollout.reward)
    finished 0.0
    finished 0.0
    >>> logic.close()
    """

    def __init__(
        self,
        factored: Factored[Any, Any],
        agent: Agent,
        *,
        slots: int = 8,
        timeout_s: float | None = None,
        budget: Budget | None = None,
        watch: Callable[[Start, int, Turn], None] | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive or None, got {timeout_s}")
        self.budget = Budget() if budget is None else budget
        if self.budget.most["tokens"] is not None and not agent.counts_tokens:
            raise TypeError(f"{type(agent).__name__} does not count tokens, so that they cannot be bounded")
        self.factored, self.agent, self.slots, self.timeout_s = factored, agent, slots, timeout_s
        self.watch = watch
        self._most_turns = int(getattr(getattr(factored, "rules", None), "max_turns", 0))
        if self.budget.most["executions"] is not None and self._most_turns < 1:
            raise TypeError("executions can be bounded where the environment says how many turns an episode has at most")
        self.executing = Threads(slots, "execute")
        self._playing: dict[Start, asyncio.Task[Rollout]] = {}
        self._unwanted: list[Callable[[Start], bool]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def cancel(self, which: Callable[[Start], bool] = lambda start: True) -> None:
        """End the rollouts of these starts, and begin none of those that wait; may be called from any thread."""
        self._unwanted.append(which)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                self._loop.call_soon_threadsafe(self._end_unwanted)

    def collect(self, starts: Iterable[Start]) -> Iterator[Rollout]:
        """The rollouts of these starts, as they end; to leave the loop early cancels the others."""
        found: queue.SimpleQueue[Rollout | BaseException | None] = queue.SimpleQueue()

        async def work() -> None:
            async for rollout in self.run(starts):
                found.put(rollout)

        def played() -> None:
            try:
                asyncio.run(work())
            except BaseException as error:
                found.put(error)
            else:
                found.put(None)

        thread = threading.Thread(target=played, name="rollouts", daemon=True)
        thread.start()
        try:
            while (each := found.get()) is not None:
                if isinstance(each, BaseException):
                    raise each
                yield each
        finally:
            self.cancel()
            thread.join()

    async def run(self, starts: Iterable[Start]) -> AsyncIterator[Rollout]:
        """The rollouts of these starts, as they end."""
        self._loop, self.executing = asyncio.get_running_loop(), Threads(self.slots, "execute")
        waiting, ended = iter(starts), asyncio.Queue[Rollout | None]()

        async def slot() -> None:
            for start in waiting:
                await ended.put(await self._wanted(start))

        async def all_slots() -> None:
            try:
                async with self.agent.opened():
                    await asyncio.gather(*(slot() for _ in range(self.slots)))
            finally:
                ended.put_nowait(None)

        playing = asyncio.create_task(all_slots())
        try:
            while (rollout := await ended.get()) is not None:
                yield rollout
            await playing
        finally:
            playing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await playing
            self._loop = None
            self.executing.shutdown(wait=False, cancel_futures=True)

    def _end_unwanted(self) -> None:
        for start, task in self._playing.items():
            if any(which(start) for which in self._unwanted):
                task.cancel()

    async def _wanted(self, start: Start) -> Rollout:
        """Play, unless the rollout is cancelled."""
        if any(which(start) for which in self._unwanted):
            return Rollout(start, (), "cancelled")
        task = self._playing[start] = asyncio.create_task(self._play(start))
        try:
            return await task
        except asyncio.CancelledError:
            if any(which(start) for which in self._unwanted):
                return Rollout(start, (), "cancelled")
            task.cancel()
            raise
        finally:
            del self._playing[start]

    async def _play(self, start: Start) -> Rollout:
        """One rollout, whatever becomes of it."""
        began, game = time.monotonic(), _Game(self, start)
        player, kind, most = self.agent.player(start), "", self._most_turns
        if not await self.budget.reserve("executions", most):
            return Rollout(start, (), "capped", self.out_of())
        if not await game.fund(player, max(most, 1)) or (left := self.budget.seconds_left) == 0.0:
            self.budget.settle("executions", most, used=0)
            game.close()
            return Rollout(start, (), "capped", self.out_of())
        limits = [each for each in (self.timeout_s, left) if each is not None]
        ended: Ending
        try:
            await asyncio.wait_for(game.play(player), min(limits, default=None))
            ended, problem = game.ended, game.problem
        except asyncio.TimeoutError:
            capped = self.budget.seconds_left == 0.0
            ended, problem = ("capped", self.out_of()) if capped else ("timeout", f"not over within {self.timeout_s:g} s")
        except AgentFailed as failure:
            ended, problem, kind = "lost" if failure.lost else "agent", str(failure), failure.kind
        finally:
            self.budget.settle("executions", most, used=game.close())
            await player.close()
        turns, seconds = tuple(game.turns), time.monotonic() - began
        reward, standing = game.reached() if ended in KNOWN else (None, {})
        return Rollout(start, turns, ended, problem, kind, reward, standing, seconds, game.spent_tokens)

    def out_of(self) -> str:
        """What a budget has run out of, in words."""
        return f"the bound on {' and '.join(sorted(self.budget.refused))} allows no more"


class _Game:
    """One episode on its way."""

    def __init__(self, rollouts: Rollouts, start: Start) -> None:
        self._all, self._start, self._factored = rollouts, start, rollouts.factored
        observation, info = self._factored.start(np.array([start.seed], dtype=np.int64), {"task": start.task})
        self._state = self._factored.begin(observation, info)
        self._observation = sample_at(self._factored.observation_space, observation, 0)
        self.turns: list[Turn] = []
        self.executions = self.spent_tokens = self._purse = 0
        self._counting, self._closed = threading.Lock(), False
        self.ended: Ending = "finished"
        self.problem = ""

    async def play(self, player: Player) -> None:
        """Until its end.

        Raises:
            AgentFailed: the agent gave no reply.
        """
        while True:
            began, spent = time.monotonic(), self.spent_tokens
            said = await self._asked(player)
            if said is None:
                self.ended, self.problem = "capped", self._all.out_of()
                return
            if await self._step(said, time.monotonic() - began, self.spent_tokens - spent):
                return

    async def fund(self, player: Player, turns: int) -> bool:
        """Reserve tokens for the whole episode, so that one that is begun is seldom cut; False where there are too few."""
        purse = turns * player.most_tokens(self._observation)
        if not await self._all.budget.reserve("tokens", purse):
            return False
        self._purse = purse
        return True

    async def _asked(self, player: Player) -> Said | None:
        """The agent's reply; None where its tokens could pass the bound."""
        budget, most = self._all.budget, player.most_tokens(self._observation)
        if most > self._purse:
            if not await budget.reserve("tokens", most - self._purse, wait=False):
                return None
            self._purse = most
        used = most  # of a reply that never came: what it took is not known, and it may have been all
        try:
            said = await player.reply(self._observation)
            counts = said.prompt_tokens, said.completion_tokens
            used = most if counts[0] is None or counts[1] is None else counts[0] + counts[1]
        except AgentFailed as failure:
            used = most if failure.spent else 0
            raise
        finally:
            # What a server counts may be more than it can have been.
            drawn = min(used, self._purse)
            budget.settle("tokens", drawn, used=used)
            self._purse -= drawn
            self.spent_tokens += used
        return said

    async def _step(self, said: Said, thought_s: float, spent_tokens: int) -> bool:
        """Take one step; whether it was the last."""
        began = time.monotonic()
        try:
            action: Any = (said.action,) if isinstance(said.action, str) else self._checked(said.action)
        except (ValueError, TypeError) as error:
            raise AgentFailed("raised", f"its reply is no action: {error}") from error
        code, outcome, step = await asyncio.wrap_future(self._all.executing.submit(self._outcome, action))
        info = {name: _scalar(column[0]) for name, column in step.info.items()}
        turn = Turn(
            observation=self._observation,
            said=said,
            code=code,
            status=self._factored.statuses[int(outcome.status[0])] if outcome.known[0] else "",
            feedback=str(outcome.feedback[0]),
            reward=float(step.reward[0]),
            reward_due=bool(step.reward_due[0]),
            reward_valid=bool(step.reward_valid[0]),
            executed=bool(outcome.wall_s[0] > 0 or not outcome.known[0]),
            thought_s=thought_s,
            ran_s=time.monotonic() - began,
            cpu_s=float(outcome.cpu_s[0]),
            spent_tokens=spent_tokens,
            info={name: value for name, value in info.items() if value == value},
        )
        self.turns.append(turn)
        self._observation = sample_at(self._factored.observation_space, step.observation, 0)
        if self._all.watch is not None:
            self._all.watch(self._start, len(self.turns), turn)
        if not turn.reward_valid:
            self.ended, self.problem = "lost", turn.feedback
        return bool(step.terminated[0] or step.truncated[0])

    def _checked(self, action: Any) -> Any:
        return checked_action(self._factored.action_space, action)

    def _outcome(self, action: Any) -> tuple[str, Outcome, Step]:
        """Execute an action, on a thread; what was run, what came of it, and the step."""
        attempt = self._factored.attempt(self._state, action)
        certain, outcome = self._factored.gate(attempt)
        if not certain[0]:
            with self._counting:
                if self._closed:
                    raise RuntimeError("the rollout is over")
                self.executions += 1
            outcome = self._factored.execute(attempt)
        self._state, step = self._factored.advance(self._state, attempt, outcome)
        return str(self._factored.text(attempt)[0]), outcome, step

    def close(self) -> int:
        """Execute nothing any more, and give back what is left; how much was executed."""
        self._all.budget.settle("tokens", self._purse, used=0)
        self._purse = 0
        with self._counting:
            self._closed = True
            return self.executions

    def reached(self) -> tuple[float, dict[str, float]]:
        """The return so far, which for an agent that stopped is what it had reached; and how it stands."""
        paid = sum(turn.reward for turn in self.turns if turn.reward_due)
        standing = getattr(self._factored, "standing", None)
        if standing is None:
            return paid, {}
        numbers = {name: float(values[0]) for name, values in standing(self._state).items()}
        reward = numbers.pop("reward", paid)
        return reward, {name: value for name, value in numbers.items() if value == value}


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
