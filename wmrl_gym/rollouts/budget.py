"""Bounds on what many rollouts may spend together, asked before anything is spent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Budget:
    """Tokens, executions and seconds that may be spent.

    What could be spent is reserved first and settled afterwards, so that a bound is never passed. Whoever asks waits while what
    others have reserved may come back, and is refused once it cannot.

    Args:
        tokens: at most, of prompts and replies; None for no bound.
        executions: at most.
        seconds: at most, from now on.
        spent_tokens: that were spent before.
        spent_executions: likewise.
        spent_seconds: likewise.
        clock: seconds that never go back.

    Raises:
        ValueError: a bound below 0.

    >>> budget = Budget(executions=5)
    >>> asyncio.run(budget.reserve("executions", 4)), asyncio.run(budget.reserve("executions", 6))
    (True, False)
    >>> budget.settle("executions", 4, used=1)
    >>> budget.spent["executions"]
    1
    """

    def __init__(
        self,
        *,
        tokens: int | None = None,
        executions: int | None = None,
        seconds: float | None = None,
        spent_tokens: int = 0,
        spent_executions: int = 0,
        spent_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("tokens", tokens), ("executions", executions), ("seconds", seconds)):
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must be at least 0 or None, got {value}")
        self.most: dict[str, int | None] = {"tokens": tokens, "executions": executions}
        self.spent: dict[str, int] = {"tokens": spent_tokens, "executions": spent_executions}
        self._reserved = {"tokens": 0, "executions": 0}
        self._clock, self._began = clock, clock()
        self._spent_seconds, self.max_seconds = spent_seconds, seconds
        self._waiting: list[asyncio.Future[None]] = []
        self.refused: set[str] = set()
        """What has run out: "tokens", "executions", "seconds"."""

    @property
    def seconds(self) -> float:
        """Spent so far."""
        return self._spent_seconds + self._clock() - self._began

    @property
    def seconds_left(self) -> float | None:
        """Until the bound, 0 at the least; None where there is none. Once it is 0, seconds have run out."""
        if self.max_seconds is None:
            return None
        left = max(self.max_seconds - self.seconds, 0.0)
        if left == 0.0:
            self.refused.add("seconds")
        return left

    async def reserve(self, what: str, amount: int, *, wait: bool = True) -> bool:
        """Reserve so much; False where it could pass the bound, whatever the others give back, or at once if not to wait."""
        most = self.most[what]
        while most is not None and self.spent[what] + self._reserved[what] + amount > most:
            if not wait or self._reserved[what] == 0 or self.spent[what] + amount > most:
                self.refused.add(what)
                return False
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
        self._reserved[what] += amount
        return True

    def settle(self, what: str, reserved: int, *, used: int) -> None:
        """Give back what was reserved, and count what was used of it."""
        self._reserved[what] -= reserved
        self.spent[what] += used
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
