"""Signs of actions: stable, nearly independent, sensitive to each part and to the context."""

from __future__ import annotations

import numpy as np
import pytest

from wmrl_gym.corrections import ActionSigns, AdaptiveKappa


def test_signs_are_the_same_in_every_process() -> None:
    # Fixed values: Python's own hash would differ from run to run.
    assert ActionSigns(6)([[3, 1]], [2]).round(3).tolist() == [[-1.414, 0.0, 1.414, 0.0, 1.414, 0.0]]


def test_different_actions_contexts_and_positions_have_unrelated_signs() -> None:
    signs = ActionSigns(4096)
    rows = signs([[0, 1], [1, 0], [0, 2], [0, 1]], [0, 0, 0, 1])
    overlap = rows @ rows.T / 4096
    np.testing.assert_allclose(np.diag(overlap), 1.0, atol=0.1)
    assert abs(overlap[0, 1]) < 0.1
    assert abs(overlap[0, 3]) < 0.1
    # One of two parts is shared.
    assert overlap[0, 2] == pytest.approx(0.5, abs=0.1)


def test_texts_that_share_words_share_signs() -> None:
    rows = ActionSigns(4096)(["fit a tree", "fit a line", "quite another thing", ""])
    overlap = rows @ rows.T / 4096
    assert overlap[0, 1] == pytest.approx(2 / 3, abs=0.1)
    assert abs(overlap[0, 2]) < 0.1
    assert np.isfinite(rows).all()


def test_real_valued_actions_are_projected_linearly() -> None:
    signs = ActionSigns(64)
    a, b = np.array([[0.3, -1.0]]), np.array([[0.1, 0.5]])
    np.testing.assert_allclose(signs(a + b), signs(a) + signs(b))


def test_signs_of_actions_tell_an_exploitable_bias_from_noise() -> None:
    kappas = []
    for bias in (0.0, 0.3):
        rng, kappa, signs = np.random.default_rng(0), AdaptiveKappa(), ActionSigns(128)
        shift = bias * np.tile([1.0, -1.0], 4)
        for _ in range(200):
            arms = rng.integers(0, 8, 26)
            kappa.update(rng.normal(0, 0.3, 26) + shift[arms], signs(arms))
        kappas.append(kappa.kappa)
    assert kappas[0] < 0.45
    assert kappas[1] > 0.8


def test_anchors_that_come_one_at_a_time_are_as_good_as_a_batch() -> None:
    rng, signs = np.random.default_rng(1), ActionSigns(32)
    whole, single = AdaptiveKappa(batch=8), AdaptiveKappa(batch=8)
    for _ in range(20):
        arms, residual = rng.integers(0, 8, 8), rng.normal(0, 0.3, 8)
        whole.update(residual, signs(arms))
        for i in rng.permutation(8):
            single.update(residual[i : i + 1], signs(arms[i : i + 1]))
    assert single.kappa == pytest.approx(whole.kappa)
    assert whole.kappa != 0.5


def test_the_number_of_features_may_not_change() -> None:
    kappa = AdaptiveKappa()
    kappa.update([0.1], [[1.0, 2.0]])
    with pytest.raises(ValueError, match="score must have 2 columns as before, got 1"):
        kappa.update([0.1], [[1.0]])


def test_without_features_there_is_no_evidence_and_kappa_stays() -> None:
    kappa = AdaptiveKappa()
    for _ in range(50):
        kappa.update([0.3, 0.2])
    assert kappa.kappa == 0.5
