"""``ProgressModel`` learns from time alone how far an episode has come, and judges real steps in its wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.manipulation.clips import SENTENCES, Bars, demonstrations
from wmrl_gym import batch
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.world_models import EnsembleDynamics, Observed, ProgressModel, WorldModelError
from wmrl_gym.world_models.base import Interface
from wmrl_gym.world_models.progress.clips import Assembler
from wmrl_gym.wrappers import OnlineDebiasing, ResidualCorrection, WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@pytest.fixture(scope="module")
def learnt() -> ProgressModel:
    model = ProgressModel(seed=0)
    model.fit(demonstrations(16), steps=200)
    return model


def test_progress_rises_with_time_in_an_episode_that_succeeds(learnt: ProgressModel) -> None:
    episode = demonstrations(20)[-1]
    progress = learnt.progress(episode.observation["image"], episode.instruction)
    assert ((progress >= 0) & (progress <= 1)).all()
    truth = np.linspace(0, 1, len(progress))
    assert np.corrcoef(progress, truth)[0, 1] > 0.95
    assert progress[0] < 0.2
    assert progress[-1] > 0.8


def test_another_tasks_sentence_sees_no_progress(learnt: ProgressModel) -> None:
    episode = demonstrations(20)[-1]
    other = SENTENCES[1 - SENTENCES.index(episode.instruction)]
    assert learnt.progress(episode.observation["image"], other)[-1] < 0.3


def test_a_clip_played_backwards_loses_progress(learnt: ProgressModel) -> None:
    episode = demonstrations(20)[-1]
    backwards = learnt.progress(episode.observation["image"][::-1], episode.instruction)
    assert backwards[0] > backwards[-1] + 0.4


def test_success_is_seen_at_the_end_and_not_before(learnt: ProgressModel) -> None:
    episode = demonstrations(20)[-1]
    success = learnt.success(episode.observation["image"], episode.instruction)
    assert success[-1] > 0.6 > 0.3 > success[: len(success) // 2].max()


@pytest.mark.parametrize("collapse", ["gain", "final", "max", "success"])
def test_trajectories_collapse_to_what_was_asked_for(learnt: ProgressModel, collapse: Any, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    model = ProgressModel()
    model.load(tmp_path)
    model.collapse, model.k = collapse, 2
    episode = demonstrations(20)[-1]
    images, rng = episode.observation["image"], np.random.default_rng(0)
    state = model.begin({"image": images[:1], "instruction": (episode.instruction,)}, {}, rng)
    rewards, due = [], []
    for at in range(1, len(images)):
        over = np.array([at == len(images) - 1])
        observed = Observed({"image": images[at : at + 1], "instruction": (episode.instruction,)}, over, ~over & False)
        state, prediction = model.judge(state, None, observed, rng)
        rewards.append(float(prediction.reward[0]))
        due.append(bool(prediction.reward_due[0]))
    progress = learnt.progress(images, episode.instruction)
    expected = {
        "gain": progress[-2:].mean() - progress[:2].mean(),
        "final": progress[-2:].mean(),
        "max": progress.max(),
        "success": learnt.success(images, episode.instruction)[-1],
    }[collapse]
    assert due == [False] * (len(due) - 1) + [True]
    assert rewards[:-1] == [0.0] * (len(rewards) - 1)
    assert rewards[-1] == pytest.approx(expected, abs=1e-5)


def test_paid_step_by_step_it_sums_to_the_same(learnt: ProgressModel, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    returns = {}
    for pays in ("end", "each"):
        model = ProgressModel()
        model.load(tmp_path)
        model.pays = pays  # type: ignore[assignment]
        env = WorldModelWrapper(Bars(), model, anchors=0.0, replaces="reward", seed=0)
        env.reset(seed=0)
        rewards, over = [], False
        while not over:
            _, reward, terminated, truncated, _ = env.step(np.array([1.0], np.float32))
            rewards.append(reward)
            over = terminated or truncated
        returns[pays] = sum(rewards)
        assert (sum(reward != 0 for reward in rewards) == 1) == (pays == "end")
    assert returns["each"] == pytest.approx(returns["end"])


def test_in_the_wrapper_steps_are_real_and_only_anchors_pay_the_true_reward(learnt: ProgressModel) -> None:
    env = WorldModelWrapper(Bars(), learnt, anchors=0.5, replaces="reward", update_every=0, seed=0)
    kinds = {True: 0, False: 0}
    for episode in range(24):
        observation, info = env.reset(seed=0 if episode == 0 else None)
        assert "image" in observation
        anchor, over = info["anchor"], False
        while not over:
            observation, reward, terminated, truncated, info = env.step(np.array([1.0], np.float32))
            over = terminated or truncated
        kinds[anchor] += 1
        assert terminated
        assert info["wm_reward"] == pytest.approx(reward) if not anchor else reward == info["real_reward"] == 1.0
        assert ("real_reward" in info) == anchor
    assert min(kinds.values()) > 3
    assert env.engine.stream.added == kinds[True]


def test_until_it_knows_anything_episodes_are_anchors_and_make_no_pairs() -> None:
    env = WorldModelWrapper(Bars(), ProgressModel(), anchors=0.0, replaces="reward", update_every=0, seed=0)
    _, info = env.reset(seed=0)
    assert info["anchor"]
    over = False
    while not over:
        _, reward, terminated, truncated, info = env.step(np.array([1.0], np.float32))
        over = terminated or truncated
    assert reward == 1.0
    assert env.engine.stream.added == 0


def test_corrections_go_on_top_and_learn_what_success_is_worth(learnt: ProgressModel) -> None:
    judged = WorldModelWrapper(Bars(), learnt, anchors=0.5, replaces="reward", update_every=0, seed=0)
    env = ResidualCorrection(OnlineDebiasing(judged))
    env.reset(seed=0)
    for _ in range(40):
        over = False
        while not over:
            _, _, terminated, truncated, info = env.step(np.array([1.0], np.float32))
            over = terminated or truncated
        env.reset()
    # Every one of these episodes succeeds: the truth is 1, and the calibration moves from what is predicted towards it.
    assert info["wm_reward"] < info["calibrated_reward"] <= 1.0 + 1e-6


def test_many_environments_are_judged_at_once(learnt: ProgressModel) -> None:
    envs = WorldModelVectorEnv(Bars, learnt, num_envs=3, anchors=0.3, replaces="reward", max_real=2, seed=0)
    envs.reset(seed=0)
    paid = 0
    for _ in range(20):
        _, reward, terminated, truncated, _ = envs.step(np.ones((3, 1), np.float32))
        assert not (reward[~(terminated | truncated)] != 0).any()
        paid += int((reward > 0.4).sum())
    assert paid >= 5
    envs.close()


def test_a_state_can_be_branched_and_a_step_is_pure(learnt: ProgressModel) -> None:
    rng = np.random.default_rng(0)
    episodes = demonstrations(4)
    images = np.stack([episode.observation["image"][2] for episode in episodes])
    texts = tuple(episode.instruction for episode in episodes)
    state = learnt.begin({"image": images, "instruction": texts}, {}, rng)
    no = np.zeros(4, bool)
    _, together = learnt.judge(state, None, Observed({"image": images, "instruction": texts}, ~no, no), rng)
    one = Observed({"image": images[2:3], "instruction": texts[2:3]}, ~no[:1], no[:1])
    for _ in range(2):
        _, alone = learnt.judge(batch.take(state, [2]), None, one, rng)
        assert alone.reward[0] == pytest.approx(together.reward[2], abs=1e-6)


def transitions_of(actions: list[float], *, seed: int, cut: int | None = None) -> list[Transitions]:
    env = Bars()
    before, _ = env.reset(seed=seed)
    steps = []
    for action in actions:
        after, reward, terminated, truncated, _ = env.step(np.array([action], np.float32))
        steps.append(
            Transitions(
                {"image": before["image"][None], "instruction": (before["instruction"],)},
                np.array([[action]], np.float32),
                np.array([reward]),
                {"image": after["image"][None], "instruction": (after["instruction"],)},
                np.array([terminated]),
                np.array([truncated]),
                np.ones(1, bool),
                np.zeros(1, np.int64),
            )
        )
        before = after
        if terminated or truncated:
            break
    return steps


def test_mixed_transitions_of_two_episodes_are_put_together_again() -> None:
    model = ProgressModel()
    assembler = Assembler("image", "instruction", 50)
    left, right = transitions_of([1.0] * 8, seed=0), transitions_of([-1.0] * 8, seed=3)
    mixed = [step for pair in zip(left, right[: len(left)], strict=True) for step in pair] + right[len(left) :]
    clips = []
    for at in range(0, len(mixed), 3):  # updates come as they come
        clips += assembler.add(batch.concatenate(mixed[at : at + 3]), model._vision.prepare)
    assert [clip.success for clip in clips] == [True, False]
    assert [len(clip.frames) for clip in clips] == [len(left) + 1, len(right) + 1]
    assert assembler._open == {}


def test_images_that_only_repeat_the_last_one_are_no_frames_but_at_the_end() -> None:
    model = ProgressModel()
    steps = transitions_of([1.0] * 8, seed=0)
    pictures = [step.observation["image"] for step in steps] + [steps[-1].next_observation["image"]]
    for number, step in enumerate(steps):  # a picture at the start, one in the middle, and one at the end
        for observation, at in ((step.observation, number), (step.next_observation, number + 1)):
            observation["image"] = pictures[at if at == len(steps) else (at // 4) * 4]
    (clip,) = Assembler("image", "instruction", 50).add(batch.concatenate(steps), model._vision.prepare)
    wanted = sorted({0, 4, len(steps)})
    assert clip.time == pytest.approx(np.array(wanted) / len(steps))
    assert clip.frames == pytest.approx(model._vision.prepare(np.concatenate([pictures[at] for at in wanted])))


def test_anchors_teach_it_what_is_no_success(learnt: ProgressModel, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    model = ProgressModel()
    model.load(tmp_path)
    model.min_clips, model.update_steps = 4, 40
    assert model.fit(demonstrations(8), steps=0) == {}
    rows = [step for seed in range(6) for step in transitions_of([-1.0] * 8, seed=seed)]
    measures = model.update(batch.concatenate(rows), np.random.default_rng(0))
    assert measures["wm/clips"] == 14
    assert measures["wm/success_loss"] > 0
    failed = demonstrations(20, good=False)[-1]
    assert model.success(failed.observation["image"], failed.instruction).max() < 0.4


def test_saved_and_loaded_it_says_the_same(learnt: ProgressModel, tmp_path: Path) -> None:
    learnt.save(tmp_path)
    again = ProgressModel()
    again.load(tmp_path)
    episode = demonstrations(1)[0]
    for model in (again,):
        left = learnt.progress(episode.observation["image"], episode.instruction)
        np.testing.assert_array_equal(left, model.progress(episode.observation["image"], episode.instruction))
    assert again.fitted
    with pytest.raises(WorldModelError, match=r"no ProgressModel is saved"):
        again.load(tmp_path / "nowhere")


def test_the_same_seed_learns_the_same() -> None:
    episodes = demonstrations(4)
    said = []
    for _ in range(2):
        model = ProgressModel(seed=3)
        model.fit(episodes, steps=15)
        said.append(model.progress(episodes[0].observation["image"], episodes[0].instruction))
    np.testing.assert_allclose(said[0], said[1], atol=1e-6)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match='collapse must be "gain", "final", "max" or "success", got \'mean\''):
        ProgressModel(collapse="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        ProgressModel(k=0)
    with pytest.raises(WorldModelError, match="learnt from successful episodes, and none of 3 is one"):
        ProgressModel().fit(demonstrations(3, good=False))
    with pytest.raises(WorldModelError, match="needs images"):
        WorldModelWrapper(gym.make("CartPole-v1"), ProgressModel(), replaces="reward")
    with pytest.raises(TypeError, match='ProgressModel needs replaces="reward"'):
        WorldModelWrapper(Bars(), ProgressModel())
    with pytest.raises(TypeError, match='EnsembleDynamics needs replaces="step"'):
        WorldModelWrapper(gym.make("Pendulum-v1"), EnsembleDynamics(), replaces="reward")
    with pytest.raises(ValueError, match="blocking"):
        WorldModelVectorEnv(Bars, ProgressModel(), num_envs=1, replaces="reward", anchor_mode="background")
    with pytest.raises(WorldModelError, match="judges real steps"):
        ProgressModel().step(None, None, np.random.default_rng(0))
    encoded = gym.spaces.Dict({"image": Bars().observation_space["image"], "instruction": gym.spaces.Box(-1, 1, (8,))})
    with pytest.raises(WorldModelError, match="EncodeInstruction goes around"):
        ProgressModel().bind(Interface(encoded, Bars().action_space))


def test_a_frozen_vision_encoder_takes_the_small_ones_place(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=32, patch_size=8
    )
    ViTModel(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    model = ProgressModel(vision=str(tmp_path), frames=6)
    model.fit(demonstrations(3), steps=5)
    episode = demonstrations(1)[0]
    assert model.progress(episode.observation["image"], episode.instruction).shape == (len(episode) + 1,)
