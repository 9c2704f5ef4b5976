"""Run Python code that nobody has read: under limits, isolated, and warm."""

from .base import ExecutionResult, Limits, Sandbox, SandboxUnavailable
from .factory import make_sandbox
from .local import LocalSandbox
from .rlimits import RlimitSandbox

__all__ = ["ExecutionResult", "Limits", "LocalSandbox", "RlimitSandbox", "Sandbox", "SandboxUnavailable", "make_sandbox"]
