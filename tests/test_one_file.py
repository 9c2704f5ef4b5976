"""The example that shows the method in one file computes what the package computes, and runs."""

from __future__ import annotations

import ast
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wmrl_gym import corrections

FILE = Path(__file__).parents[1] / "examples" / "wmrl_in_one_file.py"
TOLERANCE = {"rtol": 0.0, "atol": 1e-9}
FEW = {"tasks": "diabetes", "steps": 3, "groups": 2, "group-size": 2, "warmup": 2, "anchors": 0.5, "evaluation": 2}


@pytest.fixture(scope="module")
def one_file() -> Any:
    """The example as a module, found by its path: it belongs to no package."""
    spec = spec_from_file_location("wmrl_in_one_file", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def pairs(n: int, seed: int) -> tuple[Any, Any, Any]:
    """Predictions with a bias and noise, their truths, and three contexts; some lie on bounds of the range, or edges of bins."""
    rng = np.random.default_rng(seed)
    real = np.clip(rng.normal(0.6, 0.3, n), 0.0, 1.0)
    predicted = np.clip(0.4 + 0.8 * (real - 0.3) ** 2 + rng.normal(0.0, 0.15, n), 0.0, 1.0)
    predicted[::3] = predicted[::3].round(1)
    return predicted, real, rng.integers(3, size=n)


def groups(shape: tuple[int, int], seed: int) -> tuple[Any, Any, Any, Any]:
    """Predictions, truths of a few (NaN elsewhere), which are valid, and the labels of the groups."""
    predicted, real, _ = (each.reshape(shape) for each in pairs(shape[0] * shape[1], seed))
    rng = np.random.default_rng(seed + 1000)
    valid = rng.random(shape) < 0.8
    valid[0] = [True, *[False] * (shape[1] - 1)]  # one known member: nothing to compare it with
    valid[1] = False
    return predicted, np.where(rng.random(shape) < 0.3, real, np.nan), valid, np.repeat(np.arange(shape[0]), shape[1])


def test_it_is_short_and_needs_numpy_scipy_torch_and_gymnasium_alone() -> None:
    source = FILE.read_text()
    assert len(source.splitlines()) <= 350
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == {
        "gymnasium",
        "numpy",
        "scipy.optimize",
        "torch",
        "wmrl_gym",
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "wmrl_gym" not in used, "it registers the environment and does nothing else"


def nothing(n: int) -> Any:
    """What was done, where nobody asks for it."""
    return np.zeros((n, 0))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("min_pairs", [20, 200])
def test_binned_isotonic_is_the_packages_at_every_pair(one_file: Any, min_pairs: int, seed: int) -> None:
    package = corrections.BinnedIsotonic(min_pairs=min_pairs, refit_every=1)
    grid = np.linspace(0.0, 1.0, 41)
    x, r, c = pairs(300, seed)
    for n in range(301):
        f = one_file.fit_binned(x[:n], r[:n], c[:n], nothing(n), 3, min_pairs=min_pairs)
        np.testing.assert_allclose(f(grid, np.zeros(41, dtype=int), nothing(41)), package.predict(grid), **TOLERANCE)
        package.push(x[n : n + 1], r[n : n + 1])
    assert np.abs(package.predict(grid) - grid).max() > 0.05, "by then it is no longer the identity"


@pytest.mark.parametrize("seed", range(4))
def test_smooth_monotone_is_the_packages_at_every_batch(one_file: Any, seed: int) -> None:
    package = corrections.SmoothMonotone()
    grid, context = np.tile(np.linspace(0.0, 1.0, 41), 3), np.repeat(np.arange(3), 41)
    rows, at = pairs(600, seed), 0
    for size in (1, 1, 2, 8, 64, 24, 300, 200):
        x, r, c = (each[:at] for each in rows)
        ours = one_file.fit_smooth(x, r, c, nothing(at), 3)(grid, context, nothing(123))
        np.testing.assert_allclose(ours, package.predict(grid, context) if at else grid, **TOLERANCE)
        package.push(*(each[at : at + size] for each in rows))
        at += size
    assert np.diff(ours[:41]).min() == pytest.approx(0.05 / 40), "the floor was met, so that the bound was tested"


@pytest.mark.parametrize("seed", range(4))
def test_the_contextual_correction_is_the_packages_on_any_number_of_pairs(one_file: Any, seed: int) -> None:
    sizes, rng = [3, 4, 3], np.random.default_rng(seed)
    x, r, c = pairs(96, seed)
    answer = rng.integers([4, 3], size=(96, 2))
    x = np.clip(x + 0.4 * (answer[:, 0] - 1.5) / 1.5, 0.0, 1.0)
    done = one_file.one_hot(sizes, c, answer)
    shares = []
    for n in (0, 1, 4, 5, 6, 7, 12, 14, 30, 33, 45, 75, 96):
        package = corrections.ContextualCalibration()
        package.push(x[:n], r[:n], context=c[:n], features=done[:n])
        ours = one_file.fit_contextual(x[:n], r[:n], c[:n], done[:n], 3)
        np.testing.assert_allclose(ours(x, c, done), package.predict(x, context=c, features=done), **TOLERANCE)
        shares.append(package.share)
    assert shares[0] == 0.0
    assert shares[-1] > 0.3, "by then it is no longer f alone"


@pytest.mark.parametrize("seed", range(4))
def test_the_anchors_weight_is_the_packages(one_file: Any, seed: int) -> None:
    package, noise = corrections.AnchorWeight(), []
    predicted, real, _ = pairs(100 * 8, seed)
    for group, (x, r) in enumerate(zip(predicted.reshape(-1, 8), real.reshape(-1, 8), strict=True)):
        noise.append((x - r).var() / r.var())
        package.update(x, r, np.full(8, group))
        assert one_file.anchor_weight(noise, warmup=32) == pytest.approx(package.weight, rel=0.0, abs=1e-9)
    assert 1.0 < package.weight < 4.0


@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_the_packages(one_file: Any, seed: int) -> None:
    f, real, valid, group = groups((6, 8), seed)
    weight = np.where(np.isfinite(real), 2.5, 1.0)
    expected = corrections.grpo(f.ravel(), group, valid=valid.ravel(), weight=weight.ravel())
    np.testing.assert_allclose(one_file.grpo_advantages(f, valid, weight).ravel(), expected.value, **TOLERANCE)
    spread, (x, r, _) = corrections.ResidualVariance(), pairs(400, seed)
    spread.update(x, r)
    settings = {"propensity": 0.1, "residual_var": spread.variance, "kappa": 0.5}
    ours = one_file.residual_advantages(f, real, valid, 0.1, 0.5, (x - r) ** 2)
    anchor = np.isfinite(real).ravel()
    package = corrections.residual_advantages(f.ravel(), real.ravel(), group, anchor=anchor, valid=valid.ravel(), **settings)
    np.testing.assert_allclose(ours.ravel(), package.value, **TOLERANCE)
    assert not ours[:2].any(), "groups with fewer than two known members teach nothing"


@pytest.mark.parametrize("method", ["contextual", "smooth", "paper", "model"])
def test_it_trains_and_says_what_came_of_it(one_file: Any, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = one_file.main([f"--method={method}", *(f"--{name}={value}" for name, value in FEW.items())])
    executed, answers = said["executions"], 3 * 2 * 2
    assert executed == 2 if method == "model" else 2 < executed <= 2 + answers
    assert 0.0 <= said["before"][0] <= 1.0
    assert 0.0 <= said["after"][0] <= 1.0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2].startswith(f"{method}, really executed: ")
    assert printed[-1].startswith(f"{answers} imagined, {executed} executed, ")


def test_help_names_every_argument(one_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        one_file.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in one_file.Args.__dataclass_fields__)
