"""What this machine can run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: it, and how it stands.
        ok: whether it works.
        advice: what to do where it does not.
    """

    what: str
    ok: bool
    advice: str = ""


_EXTRAS = {"stable_baselines3": "sb3", "matplotlib": "demo", "vega_datasets": "tasks"}


def examine() -> list[Finding]:
    """Look at the sandbox and at the optional packages."""
    extras = [
        Finding(package.replace("_", "-"), find_spec(package) is not None, f"pip install 'wmrl-gym[{extra}]'")
        for package, extra in _EXTRAS.items()
    ]
    return [_sandbox(), *extras]


def _sandbox() -> Finding:
    from wmrl_gym.sandbox import Limits, SandboxUnavailable, make_sandbox

    try:
        sandbox = make_sandbox("local")
        try:
            result = sandbox.run("print('ok')", data_dir=None, limits=Limits(wall_s=30))
        finally:
            sandbox.close()
    except SandboxUnavailable as error:
        return Finding("sandbox", ok=False, advice=str(error))
    works = result.stdout == "ok\n"
    return Finding("sandbox (bubblewrap)", works, result.failed or result.stderr or "it ran, but printed something else")
