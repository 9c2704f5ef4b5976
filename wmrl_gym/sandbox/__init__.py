"""Run Python code that nobody has read: under limits, isolated, and warm."""

from .base import ExecutionResult, Limits, Sandbox, SandboxUnavailable, make_sandbox
from .docker import DockerSandbox
from .local import LocalSandbox
from .pool import SandboxPool
from .ray import RaySandbox
from .records import Costs
from .unisolated import RlimitSandbox

__all__ = [
    "Costs",
    "DockerSandbox",
    "ExecutionResult",
    "Limits",
    "LocalSandbox",
    "RaySandbox",
    "RlimitSandbox",
    "Sandbox",
    "SandboxPool",
    "SandboxUnavailable",
    "make_sandbox",
]
