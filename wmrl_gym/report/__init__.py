"""One self-contained HTML page of runs: what ``wmrl report`` writes."""

from typing import TYPE_CHECKING

from wmrl_gym.lazy import lazy

if TYPE_CHECKING:
    from wmrl_gym.report.page import NotARun, write_report

__all__ = ["NotARun", "write_report"]

__getattr__, __dir__ = lazy(__name__, {"NotARun": "page", "write_report": "page"})
