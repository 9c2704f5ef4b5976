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


def test_it_is_short_and_needs_numpy_torch_and_gymnasium_alone() -> None:
    source = FILE.read_text()
    assert len(source.splitlines()) <= 430
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in imports if isinstance(node, ast.ImportFrom)}
    assert {name for name in names if name.split(".")[0] not in sys.stdlib_module_names} == {
        "gymnasium",
        "numpy",
        "torch",
        "wmrl_gym",
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert "wmrl_gym" not in used, "it registers the environment and does nothing else"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("n", [1, 2, 10])
def test_isotonic_regression_is_that_of_pooled_adjacent_violators(one_file: Any, n: int, seed: int) -> None:
    from scipy.optimize import isotonic_regression

    rng = np.random.default_rng(seed)
    values, weights = rng.random(n).round(1), rng.integers(1, 9, size=n).astype(float)
    expected = isotonic_regression(values, weights=weights).x
    np.testing.assert_allclose(one_file.isotonic(values, weights), expected, **TOLERANCE)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [{}, {"min_pairs": 20, "refit_every": 7, "window": 100}])
def test_binned_isotonic_is_the_packages_at_every_pair(one_file: Any, settings: dict[str, int], seed: int) -> None:
    ours, package = one_file.BinnedIsotonic(**settings), corrections.BinnedIsotonic(**settings)
    grid = np.linspace(0.0, 1.0, 41)
    for x, r, c in zip(*pairs(300, seed), strict=True):
        ours.push(np.array([x]), np.array([r]), np.array([c]))
        package.push([x], [r])
        np.testing.assert_allclose(ours.predict(grid, np.zeros(41, dtype=int)), package.predict(grid), **TOLERANCE)
    assert np.abs(package.predict(grid) - grid).max() > 0.05, "by then it is no longer the identity"


@pytest.mark.parametrize("seed", range(4))
def test_smooth_monotone_is_the_packages_at_every_batch(one_file: Any, seed: int) -> None:
    ours, package = one_file.SmoothMonotone(3), corrections.SmoothMonotone()
    grid, context = np.tile(np.linspace(0.0, 1.0, 41), 3), np.repeat(np.arange(3), 41)
    np.testing.assert_allclose(ours.predict(grid, context), grid, **TOLERANCE)
    rows = pairs(600, seed)
    at = 0
    for size in (1, 1, 2, 8, 64, 24, 300, 200):
        x, r, c = (each[at : at + size] for each in rows)
        at += size
        ours.push(x, r, c)
        package.push(x, r, c)
        np.testing.assert_allclose(ours.predict(grid, context), package.predict(grid, context), **TOLERANCE)
    assert ours.slopes.min() == pytest.approx(0.05 / 12), "the floor was met, so that the bound was tested"


@pytest.mark.parametrize("seed", range(4))
def test_the_contextual_correction_is_the_packages_at_every_batch(one_file: Any, seed: int) -> None:
    sizes, rng = [3, 4, 3], np.random.default_rng(seed)
    ours, package = one_file.Contextual(sizes), corrections.ContextualCalibration()
    x, r, c = pairs(96, seed)
    answer = rng.integers([4, 3], size=(96, 2))
    x = np.clip(x + 0.4 * (answer[:, 0] - 1.5) / 1.5, 0.0, 1.0)
    shares, at = [], 0
    for size in (1, 3, 1, 1, 6, 2, 16, 1, 1, 1, 12, 30, 21):
        rows = slice(at, at := at + size)
        done = one_file.one_hot(sizes, c[rows], answer[rows])
        ours.push(x[rows], r[rows], c[rows], answer[rows])
        package.push(x[rows], r[rows], context=c[rows], features=done)
        expected = package.predict(x, context=c, features=one_file.one_hot(sizes, c, answer))
        np.testing.assert_allclose(ours.predict(x, c, answer), expected, **TOLERANCE)
        shares.append(package.share)
    assert shares[0] == 0.0
    assert shares[-1] > 0.3, "by then it is no longer f alone"


@pytest.mark.parametrize("seed", range(4))
def test_residual_variance_is_the_packages(one_file: Any, seed: int) -> None:
    ours, package = one_file.ResidualVariance(), corrections.ResidualVariance()
    for x, r in zip(*(each.reshape(-1, 10) for each in pairs(1000, seed)[:2]), strict=True):
        ours.update(x, r)
        package.update(x, r)
        assert ours.variance == pytest.approx(package.variance, rel=0.0, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_anchors_weight_is_the_packages(one_file: Any, seed: int) -> None:
    ours, package = one_file.AnchorWeight(), corrections.AnchorWeight()
    predicted, real, _ = pairs(100 * 8, seed)
    for group, (x, r) in enumerate(zip(predicted.reshape(-1, 8), real.reshape(-1, 8), strict=True)):
        r = np.full(8, 0.5) if group == 10 else r  # equal truths rank nothing
        ours.update(x, r)
        package.update(x, r, np.full(8, group))
        assert ours.weight() == pytest.approx(package.weight, rel=0.0, abs=1e-9)
    assert 1.0 < ours.weight() < 4.0


@pytest.mark.parametrize("seed", range(4))
def test_advantages_are_the_packages(one_file: Any, seed: int) -> None:
    f, real, valid, group = groups((6, 8), seed)
    weight = np.where(np.isfinite(real), 2.5, 1.0)
    expected = corrections.grpo(f.ravel(), group, valid=valid.ravel(), weight=weight.ravel())
    np.testing.assert_allclose(one_file.grpo_advantages(f, valid, weight).ravel(), expected.value, **TOLERANCE)
    settings = {"propensity": 0.1, "residual_var": 0.03, "kappa": 0.5}
    ours = one_file.residual_advantages(f, real, valid, **settings)
    anchor = np.isfinite(real).ravel()
    package = corrections.residual_advantages(f.ravel(), real.ravel(), group, anchor=anchor, valid=valid.ravel(), **settings)
    np.testing.assert_allclose(ours.ravel(), package.value, **TOLERANCE)
    assert not ours[:2].any(), "groups with fewer than two known members teach nothing"


@pytest.mark.parametrize("method", ["recommended", "contextual", "paper", "model"])
def test_it_trains_and_says_what_came_of_it(one_file: Any, method: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = one_file.main([f"--method={method}", *(f"--{name}={value}" for name, value in FEW.items())])
    executed, answers = said["executions"], 3 * 2 * 2
    assert executed == 2 if method == "model" else 2 < executed <= 2 + answers
    assert 0.0 <= said["before"][0] <= 1.0
    assert 0.0 <= said["after"][0] <= 1.0
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].split()[0] == method
    assert printed[-2].split() == ["method", "before", "after", "believed", "imagined", "executed", "seconds"]
    assert [int(each) for each in printed[-1].split()[-3:-1]] == [answers, executed]


def test_help_names_every_argument(one_file: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        one_file.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in one_file.Args.__dataclass_fields__)
