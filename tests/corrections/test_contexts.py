"""Maps a context, and memories that a jump shortens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.corrections import ChangeDetector, Forgetful, OnlineCalibration, PerContext, SmoothMonotone


def two_tasks(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random(n)
    c = np.arange(n) % 2
    return x, np.where(c == 0, x**3, x ** (1 / 3)), c


def test_each_context_gets_its_own_shape_and_a_stranger_the_common_one() -> None:
    x, y, c = two_tasks(4000)
    own, offset = PerContext(SmoothMonotone), SmoothMonotone()
    own.push(x, y, c)
    offset.push(x, y, c)
    grid = np.linspace(0.1, 0.9, 30)
    for label, power in ((0, 3.0), (1, 1 / 3)):
        where = np.full(30, label)
        error = np.abs(own.predict(grid, where) - grid**power).mean()
        assert error < 0.03
        assert error < np.abs(offset.predict(grid, where) - grid**power).mean()
    stranger = own.predict(grid, np.full(30, 9))
    assert (own.predict(grid, np.zeros(30, int)) < stranger).all()
    assert (stranger < own.predict(grid, np.ones(30, int))).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_it_stays_monotone_within_each_context(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f = PerContext(SmoothMonotone)
    f.push(rng.random(300), rng.random(300), rng.integers(0, 4, 300))
    for label in range(5):
        assert (np.diff(f.predict(np.linspace(0, 1, 60), np.full(60, label))) >= -1e-12).all()


@pytest.mark.parametrize("kind", [PerContext, Forgetful])
def test_composed_calibrators_resume_inside_online_calibration(kind: type[PerContext] | type[Forgetful]) -> None:
    x, y, c = two_tasks(900)
    one, other = OnlineCalibration(kind()), OnlineCalibration(kind())
    one.push(x[:400], y[:400], context=c[:400])
    other.load_state_dict(one.state_dict())
    for f in (one, other):
        f.push(x[400:], y[400:], context=c[400:])
    assert one.predict(x, context=c).tobytes() == other.predict(x, context=c).tobytes()


def test_memory_of_maps_is_bounded() -> None:
    f = PerContext(SmoothMonotone, max_contexts=3)
    f.push(np.linspace(0, 1, 100), np.linspace(0, 1, 100), np.arange(100))
    assert len(f.state_dict()["own"]) == 3


def test_a_jump_is_noticed_and_forgotten_faster_than_without() -> None:
    rng = np.random.default_rng(1)
    forgetful, steady = Forgetful(), SmoothMonotone()
    for f in (forgetful, steady):
        x = rng.random(3000)
        f.push(x, x**3)
        for _ in range(30):
            x = rng.random(20)
            f.push(x, np.sqrt(x))
    grid = np.linspace(0.1, 0.9, 20)
    truth = np.sqrt(grid)
    assert forgetful.detector.n_alarms == 1
    assert np.abs(forgetful.predict(grid) - truth).mean() < 0.3 * np.abs(steady.predict(grid) - truth).mean()


def test_false_alarms_are_rare_and_outliers_alone_raise_none() -> None:
    rng = np.random.default_rng(2)
    detector = ChangeDetector()
    residual = rng.normal(0, 0.15, 20_000)
    residual[::500] = 1.0
    for part in np.split(residual, 200):
        detector.update(part)
    assert detector.n_alarms <= 1


def test_the_detector_does_not_depend_on_the_rewards_scale_and_ignores_the_unknown() -> None:
    rng = np.random.default_rng(3)
    residual = np.concatenate([rng.normal(0, 1, 500), rng.normal(0, 3, 60)])
    alarms = []
    for scale in (1.0, 1000.0):
        detector = ChangeDetector()
        alarms.append([detector.update([scale * e, np.nan]) for e in residual])
    assert alarms[0] == alarms[1]
    assert sum(alarms[0]) == 1


def test_a_resumed_detector_alarms_at_the_same_pair() -> None:
    rng = np.random.default_rng(4)
    residual = np.concatenate([rng.normal(0, 1, 300), rng.normal(0, 3, 60)])
    one, other = ChangeDetector(), ChangeDetector()
    one.update(residual[:310])
    other.load_state_dict(one.state_dict())
    assert [one.update([e]) for e in residual[310:]] == [other.update([e]) for e in residual[310:]]
    assert one.n_alarms == other.n_alarms == 1
