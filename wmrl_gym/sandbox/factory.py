"""A sandbox by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from .base import Sandbox
from .docker import DockerSandbox
from .local import LocalSandbox
from .ray import RaySandbox
from .unisolated import RlimitSandbox

_KNOWN: dict[str, Callable[..., Sandbox]] = {
    "local": LocalSandbox,
    "docker": DockerSandbox,
    "ray": RaySandbox,
    "unsafe-rlimits": RlimitSandbox,
}


def make_sandbox(sandbox: str | Sandbox = "local", *, workers: int = 1) -> Sandbox:
    """The sandbox called ``sandbox``, for ``workers`` runs at once; a sandbox object is returned as it is.

    Raises:
        ValueError: there is none of that name.
        SandboxUnavailable: it cannot be had on this machine.

    >>> make_sandbox("locale")
    Traceback (most recent call last):
        ...
    ValueError: no sandbox is called 'locale'; known: 'local', 'docker', 'ray', 'unsafe-rlimits'; closest: 'local'
    """
    if not isinstance(sandbox, str):
        return sandbox
    if sandbox not in _KNOWN:
        closest = difflib.get_close_matches(sandbox, _KNOWN, n=1, cutoff=0.0)[0]
        known = ", ".join(map(repr, _KNOWN))
        raise ValueError(f"no sandbox is called {sandbox!r}; known: {known}; closest: {closest!r}")
    return _KNOWN[sandbox](workers=workers)
