"""The adaptive form: contains the paper's weight and the residual form as its ends, and finds its place between them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.corrections import AdaptiveKappa, FusedAdvantages, StreamWeights, dr_grpo, fuse_streams

UNBIASED = 1e6 * np.array([[1.0, -1.0], [-1.0, 1.0]])


def simple(noise: float, bias: np.ndarray, *, n_others: int = 90, n_anchors: int = 10) -> StreamWeights:
    """Predictions = truth of variance 1 + independent noise."""
    v = 1.0 + noise
    anchors = np.array([[v, 1.0], [1.0, 1.0]])
    return fuse_streams(n_others=n_others, n_anchors=n_anchors, others=[[v]], anchors=anchors, bias=bias)


@given(noise=st.floats(0.05, 5.0))
def test_without_bias_an_anchor_weighs_the_ratio_of_variances(noise: float) -> None:
    w = simple(noise, UNBIASED)
    assert w.real / w.others[0] == pytest.approx(1.0 + noise, rel=0.01)
    assert w.anchors[0] == pytest.approx(0.0, abs=0.01)


@given(noise=st.floats(0.05, 5.0), size=st.floats(1e4, 1e8))
def test_with_a_large_bias_predictions_weigh_nothing_in_all(noise: float, size: float) -> None:
    w = simple(noise, size * np.eye(2))
    assert w.kappa == pytest.approx(1.0, abs=0.01)
    assert 90 * w.others[0] + 10 * w.anchors[0] == pytest.approx(0.0, abs=0.02)


def test_kappa_rises_with_the_bias() -> None:
    kappas = [simple(0.5, b * np.array([[1.0, 0.0], [0.0, 0.0]]) + UNBIASED).kappa for b in (0.0, 0.01, 0.1, 1.0, 1e4)]
    assert all(low < high for low, high in itertools.pairwise(kappas))


def test_the_better_of_two_predictions_is_trusted_more() -> None:
    exact = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0], [-1.0, -1.0, 1.0]])
    spring = 1e6 * np.outer([1, 1, -1], [1, 1, -1]) + 1e-9 * exact
    anchors = np.array([[1.2, 1.0, 1.0], [1.0, 3.0, 1.0], [1.0, 1.0, 1.0]])
    w = fuse_streams(n_others=90, n_anchors=10, others=anchors[:2, :2], anchors=anchors, bias=spring)
    # Independent noises of variance .2 and 2: the predictions are weighted ten to one.
    assert w.others[0] / w.others[1] == pytest.approx(10.0, rel=0.02)


def test_no_anchors_and_only_anchors_are_answered() -> None:
    none = simple(0.5, UNBIASED, n_others=8, n_anchors=0)
    assert none.others[0] > 0
    assert none.real == none.anchors[0] == none.kappa == 0.0
    only = simple(0.5, 1e6 * np.eye(2), n_others=0, n_anchors=8)
    assert only.real == pytest.approx(1.0, abs=0.01)
    assert only.others[0] == 0.0
    with pytest.raises(ValueError, match="need a rollout, got 0 others and 0 anchors"):
        simple(0.5, UNBIASED, n_others=0, n_anchors=0)


class Bandit:
    """Arms in groups of 8, a true reward an arm, a bias an arm, and scores = one-hot minus policy."""

    def __init__(self, bias: float, seed: int = 0, *, noise: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.truth = np.linspace(0.2, 0.8, 16)
        self.shift = bias * np.tile([1.0, -1.0], 8)
        self.noise = noise

    def step(self, fused: FusedAdvantages) -> np.ndarray:
        arms = self.rng.integers(0, 16, 256)
        f = self.truth[arms] + self.shift[arms] + self.rng.normal(0, self.noise, 256)
        anchor = np.isin(np.arange(256), self.rng.permutation(256)[:26])
        real = np.where(anchor, self.truth[arms], np.nan)
        out = fused.advantages(f, real, np.repeat(np.arange(32), 8), anchor=anchor)
        score = np.eye(16)[arms] - 1 / 16
        fused.update(score)
        return out.value @ score / 256


def test_kappa_finds_the_bias_and_its_absence() -> None:
    kappas = []
    for bias in (0.0, 0.2):
        fused, bandit = FusedAdvantages(), Bandit(bias)
        for _ in range(150):
            bandit.step(fused)
        kappas.append(fused.kappa)
    assert kappas[0] < 0.5
    assert kappas[1] > 0.7


def test_the_fused_gradient_points_closer_to_the_truth_than_predictions_alone() -> None:
    fused, bandit = FusedAdvantages(), Bandit(0.2)
    for _ in range(50):
        bandit.step(fused)
    mean = np.mean([bandit.step(fused) for _ in range(200)], axis=0)
    exact, believed = (g - g.mean() for g in (bandit.truth, bandit.truth + bandit.shift))

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(mean, exact) > 0.97
    assert cosine(believed, exact) < 0.8


def test_without_scores_the_noise_is_learnt_and_kappa_keeps_near_its_prior() -> None:
    fused, bandit = FusedAdvantages(prior=0.4), Bandit(0.2)
    for _ in range(20):
        arms = bandit.rng.integers(0, 16, 64)
        anchor = np.arange(64) % 8 == 0
        f = bandit.truth[arms]
        fused.advantages(f, np.where(anchor, f, np.nan), np.repeat(np.arange(8), 8), anchor=anchor)
        fused.update()
    assert 0.1 < fused.kappa < 0.6


def test_gradients_by_differentiation_equal_gradients_by_scores() -> None:
    one, other = FusedAdvantages(), FusedAdvantages()
    rng = np.random.default_rng(5)
    for _ in range(30):
        f, r, score = rng.random(32), rng.random(32), rng.normal(size=(32, 5))
        anchor = rng.random(32) < 0.3
        values = []
        for fused in (one, other):
            values.append(fused.advantages(f, r, np.arange(32) // 8, anchor=anchor, more=[f**2]).value)
        np.testing.assert_allclose(values[0], values[1])
        one.update(score)
        other.update_gradients(np.einsum("kb,bd->kd", other.probes(), score))
    with pytest.raises(RuntimeError, match=r"call advantages\(\) first"):
        one.probes()


def test_a_resumed_fusion_equals_one_never_stopped() -> None:
    one, other = FusedAdvantages(), FusedAdvantages()
    bandit = Bandit(0.1, seed=3)
    for _ in range(20):
        bandit.step(one)
    other.load_state_dict(one.state_dict())
    twin = Bandit(0.1, seed=3)
    twin.rng.bit_generator.state = bandit.rng.bit_generator.state
    for _ in range(20):
        assert bandit.step(one).tobytes() == twin.step(other).tobytes()


def test_no_anchors_for_a_thousand_steps_is_plain_centring() -> None:
    fused = FusedAdvantages()
    f, group = np.array([0.1, 0.5, 0.3, 0.9]), np.array([0, 0, 1, 1])
    for _ in range(1000):
        out = fused.advantages(f, np.full(4, np.nan), group, anchor=False)
        fused.update(np.ones((4, 2)))
    plain = dr_grpo(f, group).value
    np.testing.assert_allclose(np.sign(out.value), np.sign(plain))
    assert np.isfinite(out.value).all()
    assert fused.kappa == 0.0


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), p=st.sampled_from([0.0, 0.3, 1.0]))
def test_advantages_are_finite_and_masked_whatever_comes(seed: int, p: float) -> None:
    rng = np.random.default_rng(seed)
    fused = FusedAdvantages()
    for _ in range(5):
        n = int(rng.integers(1, 40))
        f = np.where(rng.random(n) < 0.1, np.nan, rng.choice([0.5, rng.random()], n))
        real = np.where(rng.random(n) < 0.2, np.nan, rng.random(n))
        out = fused.advantages(f, real, rng.integers(0, 6, n), anchor=rng.random(n) < p, more=[f * 2])
        assert np.isfinite(out.value).all()
        assert (out.value[~out.mask] == 0).all()
        assert not out.mask[np.isnan(f)].any()
        fused.update(rng.normal(size=(n, 3)))


def test_rarer_anchors_weigh_more() -> None:
    fused = FusedAdvantages(clip=None)
    f, group = np.full(8, 0.5), np.zeros(8, int)
    anchor = np.arange(8) < 2
    p = np.array([0.1, 0.4, *[1.0] * 6])
    out = fused.advantages(f, np.full(8, 0.7), group, anchor=anchor, propensity=p)
    assert out.value[0] == pytest.approx(4 * out.value[1])


def test_the_number_of_predictions_may_not_change() -> None:
    fused = FusedAdvantages()
    fused.advantages([0.1, 0.2], [np.nan, np.nan], [0, 0], anchor=False)
    with pytest.raises(ValueError, match="expected 1 predictions as before, got 2"):
        fused.advantages([0.1, 0.2], [np.nan, np.nan], [0, 0], anchor=False, more=[[0.1, 0.2]])


def feed(kappa: AdaptiveKappa, bias: float, steps: int, *, along: bool = False) -> None:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        score = rng.normal(size=(26, 4))
        direction = np.array([1.0, 0, 0, 0])
        residual = rng.normal(0, 0.3, 26) + bias * score @ direction
        kappa.update(residual, score, predicted_gradient=direction + rng.normal(0, 0.01, 4) if along else None)


def test_adaptive_kappa_rises_with_bias_falls_with_noise_and_forgives_shrinkage() -> None:
    biased, noisy, shrunk = AdaptiveKappa(), AdaptiveKappa(), AdaptiveKappa()
    feed(biased, 0.3, 150)
    feed(noisy, 0.0, 150)
    feed(shrunk, 0.3, 150, along=True)
    assert biased.kappa > 0.9
    assert noisy.kappa < 0.4
    assert shrunk.kappa < biased.kappa - 0.3


def test_adaptive_kappa_resumes_and_ignores_the_unknown() -> None:
    one, other = AdaptiveKappa(), AdaptiveKappa()
    feed(one, 0.1, 10)
    other.load_state_dict(one.state_dict())
    before = one.kappa
    one.update([np.nan, np.nan], np.ones((2, 4)))
    assert one.kappa == before == other.kappa
    for kappa in (one, other):
        feed(kappa, 0.1, 10)
    assert one.kappa == other.kappa


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prior": 1.0}, r"prior must be in \(0, 1\), got 1"),
        ({"horizon": 0.0}, "horizon must be positive, got 0"),
        ({"floor": 0.0}, "floor and clip must be positive, got 0"),
    ],
)
def test_bad_construction_gives_expected_and_actual(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FusedAdvantages(**arguments)
