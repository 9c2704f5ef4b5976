"""What a program has set for all of torch changes nothing that a model of ours learns or says; forked processes do not hang."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.world_models.real_steps import random_steps
from wmrl_gym import batch
from wmrl_gym.data.demonstrations import Episode
from wmrl_gym.world_models import EnsembleDynamics, Interface, LocalModel, ProgressModel
from wmrl_gym.world_models.llm.schema import Field, Question
from wmrl_gym.world_models.outcome.encoders import CausalLMEncoder, SentenceEncoder
from wmrl_gym.world_models.sentence_encoders import sentence_encoder


@contextmanager
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def another_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


STATES = (torch.no_grad, torch.inference_mode, float64, another_device, deterministic, autocast)


def ensemble(folder: Path) -> NDArray[Any]:
    """Fitted twice and loaded, so that old weights are trained on; steps of one, few and many rollouts."""
    env, data = gym.make("Pendulum-v1"), random_steps("Pendulum-v1", 400)
    model = EnsembleDynamics((16, 16), min_transitions=40, max_gradient_steps=20)
    model.bind(Interface(env.observation_space, env.action_space))
    model.update(data, np.random.default_rng(0))
    model.save(folder / "ensemble")
    model.load(folder / "ensemble")
    model.update(data, np.random.default_rng(1))
    found = []
    for n in (1, 7, 300):
        rng = np.random.default_rng(2)
        state = model.begin(batch.take(data.observation, np.arange(n)), {}, rng)
        _, told = model.step(state, batch.take(data.action, np.arange(n)), rng)
        found += [told.observation.ravel(), told.reward, told.reward_std]
    return np.concatenate(found)


def progress(folder: Path) -> NDArray[Any]:
    """A prediction builds the network, which is then trained, saved, loaded and asked."""
    n = 6
    images = np.random.default_rng(0).integers(0, 255, (n + 1, 16, 16, 3), np.uint8)
    seen = {"image": images, "instruction": np.array(["open"] * (n + 1), object)}
    shown = Episode(seen, np.zeros((n, 2), np.float32), np.eye(n)[-1], True, False, True, "open", "open", 0)
    model = ProgressModel()
    before = model.progress(images, "open")
    model.fit([shown], steps=3)
    model.save(folder / "progress")
    again = ProgressModel()
    again.load(folder / "progress")
    again.fit([shown], steps=2)
    return np.concatenate([before, again.progress(images, "open")])


def language(folder: Path) -> NDArray[Any]:
    """A form that is filled in, and texts as vectors."""
    local = LocalModel.load(folder / "llama", device="cpu", max_text_tokens=4)
    fields = (Field("animal", "choice", ("cat", "dog")), Field("legs", "line"), Field("sound", "text"))
    (reply,) = local.ask([Question((("user", "open the drawer"),), fields)])
    assert reply is not None
    texts = ["open the drawer", "close"]
    vectors = CausalLMEncoder.load(folder / "llama").raw(texts)
    return np.concatenate([np.asarray(reply.chances["animal"]), vectors.ravel()])


def sentences(folder: Path) -> NDArray[Any]:
    """Both encoders of sentences."""
    texts = ["open the drawer", "close"]
    return np.concatenate([sentence_encoder(str(folder / "bert"))(texts), SentenceEncoder.load(folder / "bert").raw(texts)])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama and a small BERT, untrained."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("weights")
    words = ["[PAD]", "[UNK]", "open", "close", "the", "drawer", "cat", "dog", "1", '"', "{", "}", ":"]
    backend = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "bert")
        LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **shape)).save_pretrained(folder / "llama")
    for name in ("bert", "llama"):
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("use", [ensemble, progress, language, sentences])
def test_nothing_that_is_set_elsewhere_changes_what_is_learnt_or_said(use: Callable[[Path], NDArray[Any]], weights: Path) -> None:
    expected = use(weights)
    assert np.isfinite(expected).all()
    for state in STATES:
        with state():
            found = use(weights)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6, err_msg=f"{use.__name__} in {state.__name__}")
        assert torch.is_grad_enabled()
        assert torch.get_default_dtype() == torch.float32


def test_settings_are_found_again_as_they_were() -> None:
    from wmrl_gym.world_models.torch_state import learning, predicting

    with another_device(), torch.inference_mode(), autocast():
        with learning():
            assert torch.is_grad_enabled()
            assert not torch.is_inference_mode_enabled()
            assert not torch.is_autocast_enabled("cpu")
            assert torch.zeros(1).device.type == "cpu"
        with predicting():
            assert torch.zeros(1).device.type == "cpu"
        assert torch.is_inference_mode_enabled()
        assert torch.is_autocast_enabled("cpu")
        assert torch.zeros(1).device.type == "meta"


FORKED = """
import os, sys
from pathlib import Path
import torch
torch.set_num_threads(2)
from tests.world_models.test_torch_state import {use} as use
import numpy as np
folder = Path(sys.argv[1])
x = torch.randn(512, 512)
for _ in range(3):
    x = x @ x / 512  # the threads of this process
expected = use(folder)
child = os.fork()
if child == 0:
    found = use(folder)
    os._exit(0 if np.allclose(found, expected, rtol=1e-4, atol=1e-5) and torch.get_num_threads() == 1 else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), torch.get_num_threads())
"""


@pytest.mark.parametrize("use", [ensemble, progress, language, sentences])
def test_a_process_that_was_forked_after_a_fit_fits_and_predicts_too(use: Callable[[Path], Any], weights: Path) -> None:
    command = [sys.executable, "-c", FORKED.format(use=use.__name__), str(weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            said, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            import os
            import signal

            os.killpg(process.pid, signal.SIGKILL)  # the child hangs
            raise
    assert said.split() == ["0", "2"]
