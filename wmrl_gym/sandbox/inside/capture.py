"""Output of any length, kept within a bound."""

from __future__ import annotations


class Capture:
    """Keeps the beginning and the end of a stream of bytes; a traceback is at the end, what led to it at the beginning.

    Args:
        limit: bytes to keep at most, the marker line included.

    >>> kept = Capture(100)
    >>> kept.write(b"a" * 1000)
    >>> text = kept.text()
    >>> len(text) <= 100, "bytes cut" in text, text[0], text[-1]
    (True, True, 'a', 'a')
    """

    def __init__(self, limit: int) -> None:
        self._room = max(limit - len(self._marker(2**62)), 2)
        self._limit = limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @staticmethod
    def _marker(cut: int) -> str:
        return f"\n[... {cut} bytes cut ...]\n"

    def write(self, data: bytes) -> None:
        """Take more of the stream."""
        self._total += len(data)
        space = self._limit - len(self._head)
        if space > 0:
            self._head += data[:space]
            data = data[space:]
        self._tail += data[-self._limit :]
        if len(self._tail) > 4 * self._limit:
            del self._tail[: -self._limit]

    def text(self) -> str:
        """What was kept, as text; what is no UTF-8 is replaced."""
        if self._total <= self._limit:
            return self._head.decode(errors="replace")
        half = self._room // 2
        tail = (self._head + self._tail)[-half:]
        marker = self._marker(self._total - 2 * half)
        return self._head[:half].decode(errors="replace") + marker + tail.decode(errors="replace")
