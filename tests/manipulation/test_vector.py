"""Vector environments, spawned workers and SB3 policies take the environments as they are."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as check_sb3_env
from stable_baselines3.common.vec_env import DummyVecEnv

import wmrl_gym  # noqa: F401
from wmrl_gym.world_models.sentence_encoders import HashedWords, TransformerSentences, sentence_encoder
from wmrl_gym.wrappers import EncodeInstruction, StackImages

OPTIONS: dict[str, Any] = {"task": ["drawer-open", "reach"], "image_size": 40}


def make_env() -> gym.Env[Any, Any]:
    return gym.make("wmrl/VLAManipulation-v0", **OPTIONS)


def make_for_sb3() -> gym.Env[Any, Any]:
    return EncodeInstruction(StackImages(make_env(), 2))


def steps_of(envs: Any) -> list[Any]:
    envs.action_space.seed(0)
    seen = list(envs.reset(seed=3))
    for _ in range(3):
        seen += envs.step(envs.action_space.sample())
    return seen


@pytest.mark.needs_gl
def test_spawned_workers_say_what_synchronous_ones_do() -> None:
    sync = SyncVectorEnv([make_env, make_env])
    spawned = AsyncVectorEnv([make_env, make_env], context="spawn")
    try:
        for left, right in zip(steps_of(sync), steps_of(spawned), strict=True):
            if isinstance(left, dict) and "image" in left:
                assert (left["image"] == right["image"]).all()
                assert (left["state"] == right["state"]).all()
                assert tuple(left["instruction"]) == tuple(right["instruction"])
            elif isinstance(left, dict):
                assert list(left["task"]) == list(right["task"])
            else:
                assert (left == right).all()
    finally:
        sync.close()
        spawned.close()


@pytest.mark.needs_gl
def test_make_vec_makes_them_with_wrappers() -> None:
    envs = gym.make_vec(
        "wmrl/VLA-drawer-open-v0", num_envs=2, vectorization_mode="sync", wrappers=[partial(EncodeInstruction)], image_size=32
    )
    observation, _ = envs.reset(seed=0)
    assert observation["instruction"].shape == (2, 64)
    envs.close()


def test_wrapped_environments_can_be_made_again_from_their_specification() -> None:
    env = make_for_sb3()
    again = gym.make(env.spec)  # type: ignore[arg-type]
    assert again.observation_space == env.observation_space
    env.close()
    again.close()


@pytest.mark.needs_gl
def test_sb3_accepts_and_trains_on_images_with_an_encoded_instruction() -> None:
    env = make_for_sb3()
    check_sb3_env(env)
    env.close()
    venv = DummyVecEnv([make_for_sb3])
    model = PPO("MultiInputPolicy", venv, n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=0).learn(8)
    action, _ = model.predict(venv.reset(), deterministic=True)
    assert action.shape == (1, 4)
    venv.close()


@pytest.mark.needs_gl
def test_stacks_hold_the_newest_images_oldest_first() -> None:
    env = StackImages(make_env(), 3)
    observation, _ = env.reset(seed=0)
    first = observation["image"][..., :3]
    assert all((observation["image"][..., at : at + 3] == first).all() for at in (0, 3, 6))
    for _ in range(2):
        before = observation["image"]
        observation, *_ = env.step(np.array([1, 1, -1, 1], np.float32))
        assert (observation["image"][..., :6] == before[..., 3:]).all()
    assert (observation["image"][..., -3:] != first).any()
    assert observation in env.observation_space
    env.close()


@pytest.mark.needs_gl
def test_each_sentence_is_encoded_once() -> None:
    class Counting(HashedWords):
        calls = 0

        def __call__(self, sentences: Any) -> Any:
            Counting.calls += 1
            return super().__call__(sentences)

    env = EncodeInstruction(gym.make("wmrl/VLAManipulation-v0", task="drawer-open", phrasing="plain", image_size=32), Counting())
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        assert observation in env.observation_space
    assert Counting.calls == 1
    env.close()


def test_an_environment_without_a_text_is_refused() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(TypeError, match="a text under 'instruction'"):
        EncodeInstruction(env)
    with pytest.raises(ValueError, match="images"):
        StackImages(env)


def test_a_transformer_encodes_sentences(tmp_path: Any) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "open", "close", "the", "drawer"])}
    backend = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(tmp_path)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), **shape)).save_pretrained(tmp_path)
    encode = sentence_encoder(str(tmp_path))
    assert isinstance(encode, TransformerSentences)
    vectors = encode(["open the drawer", "close the drawer please now"])
    assert vectors.shape == (2, encode.size) == (2, 16)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(vectors[0], encode(["open the drawer"])[0], atol=1e-5)
