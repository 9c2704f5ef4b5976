"""Texts as numbers: the same numbers in any batch, and near each other where the texts are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wmrl_gym.world_models.outcome.encoders import HashingEncoder, NoEncoder, TextEncoder, TfidfEncoder, make_encoder

SCRIPTS = [
    "model = Ridge(alpha=1)",
    "model = Ridge(alpha=2)",
    "import pandas as pd\nprint(pd)",
    "",
    "日本語 = 'ü'",
    "x" * 5000,
    "\ud800",
]


def alike(left: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(left @ right / np.sqrt((left @ left) * (right @ right)))


@pytest.mark.parametrize("encoder", [NoEncoder(), HashingEncoder(64), TfidfEncoder(20)])
def test_a_text_has_the_same_vector_in_any_batch(encoder: TextEncoder) -> None:
    fitted = encoder.fitted_on(SCRIPTS[:3])
    together = fitted.encode(SCRIPTS)
    assert together.dtype == np.float32
    assert np.isfinite(together).all()
    for row, script in enumerate(SCRIPTS):
        np.testing.assert_array_equal(fitted.encode([script])[0], together[row])
    assert fitted.encode([]).shape == (0, together.shape[1])


@given(st.lists(st.text(alphabet="ab_1 .\n(é", max_size=30), min_size=1, max_size=6))
def test_hashed_counts_are_those_of_words_and_of_neighbouring_words(texts: list[str]) -> None:
    encoder = HashingEncoder(97)
    counts = np.expm1(encoder.encode(texts).astype(np.float64))
    for row, text in enumerate(texts):
        words = "".join(char if char.isalnum() or char == "_" else " " for char in text).split()
        assert counts[row].sum() == pytest.approx(len(words) + max(len(words) - 1, 0), abs=1e-3)
        alone = [np.expm1(encoder.encode([word])[0].astype(np.float64)) for word in words]
        pairs = [np.expm1(encoder.encode([f"{first} {second}"])[0].astype(np.float64)) for first, second in pairwise(words)]
        inner = [np.expm1(encoder.encode([word])[0].astype(np.float64)) for word in words[1:-1]]
        expected = np.sum(pairs, axis=0) - np.sum(inner, axis=0) if pairs else np.sum(alone, axis=0)
        np.testing.assert_allclose(counts[row], expected if words else 0.0, atol=1e-3)


def test_hashing_spreads_words_over_all_columns() -> None:
    counts = np.expm1(HashingEncoder(64).encode([f"name_{number}" for number in range(6400)])).sum(axis=0)
    assert counts.min() > 60
    assert counts.max() < 145


def test_alike_scripts_have_alike_vectors() -> None:
    first, second, other = HashingEncoder(512).encode(SCRIPTS[:3])
    assert alike(first, second) > 0.5 > alike(first, other)


def test_tfidf_without_a_word_says_nothing() -> None:
    assert TfidfEncoder().fitted_on(["", "1 + 1"]).encode(["x y", ""]).shape == (2, 0)
    assert TfidfEncoder().encode(["not fitted"]).shape == (1, 0)


def test_fitting_leaves_the_encoder_as_it_was() -> None:
    encoder = TfidfEncoder()
    fitted = encoder.fitted_on(SCRIPTS)
    assert encoder.encode(SCRIPTS).shape[1] == 0 < fitted.encode(SCRIPTS).shape[1]


@pytest.mark.parametrize("encoder", [NoEncoder(), HashingEncoder(64), TfidfEncoder(20)])
def test_settings_make_the_same_encoder_again(encoder: TextEncoder) -> None:
    again = make_encoder(encoder.settings())
    assert again is not None
    np.testing.assert_array_equal(again.fitted_on(SCRIPTS).encode(SCRIPTS), encoder.fitted_on(SCRIPTS).encode(SCRIPTS))


@pytest.mark.parametrize("wrong", [lambda: HashingEncoder(0), lambda: TfidfEncoder(0)])
def test_widths_out_of_range_are_refused(wrong: type) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        wrong()
