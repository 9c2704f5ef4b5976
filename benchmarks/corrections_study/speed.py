"""What a correction costs: milliseconds with 5,000 pairs held, and the bytes that its state takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from wmrl_gym.corrections import ContextualCalibration, FusedAdvantages, OnlineCalibration, residual_advantages


def _milliseconds(work: Callable[[], object], repeats: int = 30) -> float:
    """Median of ``repeats`` calls."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken)) * 1e3


def _bytes(state: Any) -> int:
    if isinstance(state, dict):
        return sum(_bytes(value) for value in state.values())
    return int(state.nbytes) if isinstance(state, np.ndarray) else 8


def measure() -> dict[str, float]:
    """Milliseconds of each part at 5,000 pairs, 32 contexts and 256 rollouts; bytes after 5,000 and after 100,000 pairs."""
    rng = np.random.default_rng(0)
    out: dict[str, float] = {}
    x, c = rng.random(100_000), rng.integers(0, 32, 100_000)
    r = x**2
    kinds: tuple[Literal["smooth", "binned"], ...] = ("smooth", "binned")
    for kind in kinds:
        f = OnlineCalibration(kind)
        f.push(x[:5000], r[:5000], context=c[:5000])
        out[f"{kind}: refit ms"] = _milliseconds(f.refit)
        out[f"{kind}: predict 256 ms"] = _milliseconds(lambda f=f: f.predict(x[:256], context=c[:256]))  # type: ignore[misc]
        out[f"{kind}: push 26 ms"] = _milliseconds(lambda f=f: f.push(x[:26], r[:26], context=c[:26]))  # type: ignore[misc]
        out[f"{kind}: bytes at 5,000"] = _bytes(f.state_dict())
        for start in range(5000, 100_000, 1000):
            f.push(x[start : start + 1000], r[start : start + 1000], context=c[start : start + 1000])
        out[f"{kind}: bytes at 100,000"] = _bytes(f.state_dict())
    contextual, z = ContextualCalibration(), rng.random((5000, 64))
    contextual.push(x[:5000], r[:5000], context=c[:5000], features=z)
    out["contextual: refit ms"] = _milliseconds(contextual.refit, 5)
    out["contextual: predict 256 ms"] = _milliseconds(lambda: contextual.predict(x[:256], context=c[:256], features=z[:256]))
    group, anchor = np.repeat(np.arange(32), 8), np.arange(256) % 10 == 0
    fused = FusedAdvantages()
    score = rng.normal(size=(256, 128))

    def fuse() -> None:
        fused.advantages(x[:256], r[:256], group, anchor=anchor, more=[x[:256]])
        fused.update(score)

    out["residual_advantages 256 ms"] = _milliseconds(
        lambda: residual_advantages(x[:256], r[:256], group, anchor=anchor, propensity=0.1, residual_var=0.02)
    )
    out["FusedAdvantages 256 ms"] = _milliseconds(fuse)
    return {name: round(value, 3) for name, value in out.items()}


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:32} {value:,.3f}")
