"""``python -m benchmarks.manipulation``: runs are kept, results add up, and trials are what they are said to be."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from stable_baselines3 import SAC

from benchmarks.robots import images, state
from benchmarks.robots.report import auc, reached, summarise, table, write
from benchmarks.robots.runs import Variant, run_all
from benchmarks.robots.trials import Length, Senses, TrialMaker, demonstrate, until_done
from wmrl_gym.batch import concatenate
from wmrl_gym.data.demonstrations import Episode


@dataclass(frozen=True)
class Effort:
    """A setting."""

    steps: int = 4


def comparison(ran: list[tuple[str, str, int]], setting: Effort, *, fails_at: int | None = None) -> Variant:
    """Two arms whose training notes that it ran."""

    def train(arm: str, task: str, setting: Effort, *, seed: int, folder: Path, tell: Any) -> dict[str, Any]:
        if len(ran) == fails_at:
            raise KeyboardInterrupt
        ran.append((arm, task, seed))
        tell(setting.steps)
        return record(arm, seed=seed, curve=[(setting.steps, 0.5)], task=task)

    return Variant("tiny", {"real": "real", "model": "model"}, setting, train, "steps", "steps", lambda arm: setting.steps, 1)


def record(arm: str, *, seed: int, curve: list[tuple[int, float]], task: str = "reach", **more: Any) -> dict[str, Any]:
    points = [{"steps": steps, "seconds": 2.0 * steps, "success": success} for steps, success in curve]
    return {"arm": arm, "task": task, "seed": seed, "curve": points, **more}


def run(variant: Variant, folder: Path, *, seeds: int = 2) -> list[dict[str, Any]]:
    quiet = Console(quiet=True)
    return run_all(variant, arms=["real", "model"], tasks=["reach", "push"], seeds=range(seeds), runs=folder, console=quiet)


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    ran: list[tuple[str, str, int]] = []
    first = run(comparison(ran, Effort()), tmp_path, seeds=1)
    assert len(ran) == 4
    again = run(comparison(ran, Effort()), tmp_path)
    assert len(ran) == 8
    assert again[:4] == first
    assert {seed for _, _, seed in ran[4:]} == {1}


def test_an_interrupted_benchmark_goes_on_where_it_stopped(tmp_path: Path) -> None:
    ran: list[tuple[str, str, int]] = []
    with pytest.raises(KeyboardInterrupt):
        run(comparison(ran, Effort(), fails_at=5), tmp_path)
    records = run(comparison(ran, Effort()), tmp_path)
    assert len(ran) == len(set(ran)) == len(records) == 8


def test_runs_of_other_settings_are_refused_instead_of_mixed(tmp_path: Path) -> None:
    run(comparison([], Effort()), tmp_path)
    with pytest.raises(SystemExit, match="other settings"):
        run(comparison([], Effort(steps=5)), tmp_path)


def test_runs_of_the_state_variant_are_kept_with_their_settings(tmp_path: Path) -> None:
    variant = state.variant(quick=False)
    made = replace(variant, train=lambda arm, task, setting, *, seed, **_: record(arm, seed=seed, curve=[(1, 0.0)], task=task))
    run(made, tmp_path, seeds=1)
    kept = json.loads((tmp_path / "push-model-0.json").read_text())
    assert set(kept) == {"setting", "arm", "task", "seed", "curve"}
    assert kept["setting"]["real_steps"] == state.Setting().real_steps
    assert kept["setting"]["sac"]["policy_kwargs"]["net_arch"] == [128, 128]


def test_what_a_trainer_writes_into_its_arguments_does_not_make_other_settings_of_them(tmp_path: Path) -> None:
    def train(arm: str, task: str, setting: state.Setting, *, seed: int, **_: Any) -> dict[str, Any]:
        setting.sac["policy_kwargs"]["use_sde"] = False  # as SB3's SAC does
        return record(arm, seed=seed, curve=[(1, 0.0)], task=task)

    variant = replace(state.variant(quick=False), train=train)
    first = run(variant, tmp_path)
    assert run(state.variant(quick=False), tmp_path) == first


RECORDS = [
    record("real", seed=0, curve=[(2, 0.0), (4, 0.5)]),
    record("real", seed=1, curve=[(2, 0.5), (4, 1.0)]),
    record("model", seed=0, curve=[(2, 0.6), (4, 0.2)], pairs=[[0.9, 1.0], [0.2, 0.0]]),
    record("model", seed=1, curve=[(2, 0.0), (4, 0.4)], pairs=[[0.1, 1.0]]),
]


def test_results_say_final_success_and_what_it_took_to_reach_what_real_steps_alone_reach() -> None:
    arms = summarise(RECORDS, comparison([], Effort()))["tasks"]["reach"]
    assert arms["real"]["success"] == pytest.approx([0.75, 0.25])
    assert arms["real"]["to_real_only"] == {"reached": 2, "steps": 4.0, "seconds": 8.0}
    assert arms["model"]["success"] == pytest.approx([0.3, 0.1])
    assert arms["model"]["to_real_only"] == {"reached": 1, "steps": 2.0, "seconds": 4.0}
    assert arms["model"]["auc"] == pytest.approx(3 / 4 - 1 / 4)
    assert "auc" not in arms["real"]


def test_arms_are_held_against_the_baseline_that_the_variant_names() -> None:
    against = replace(comparison([], Effort()), baseline="model")
    arms = summarise(RECORDS, against)["tasks"]["reach"]
    assert arms["real"]["to_real_only"] == {"reached": 2, "steps": 3.0, "seconds": 6.0}


def test_nothing_is_reached_where_real_steps_alone_reach_nothing() -> None:
    curve = [{"steps": 1.0, "success": 0.0}]
    assert reached(curve, 0.0) is None
    assert reached(curve, None) is None
    assert reached(curve, 0.1) is None


def test_predictions_without_failures_have_no_ranking() -> None:
    assert auc([(0.3, 1.0), (0.4, 1.0)]) is None


def test_the_table_has_a_row_for_each_task_and_arm() -> None:
    variant = comparison([], Effort())
    console = Console(width=140, record=True, quiet=True)
    shown = table(summarise(RECORDS, variant), variant)
    assert shown.row_count == 2
    console.quiet = False
    with console.capture() as captured:
        console.print(shown)
    assert "0.75 ± 0.25" in captured.get()
    assert "0.30 ± 0.10" in captured.get()


def test_results_of_the_variant_that_was_not_run_stay(tmp_path: Path) -> None:
    variant = comparison([], Effort())
    known = {"state": variant, "images": replace(variant, name="images")}
    write({"images": summarise(RECORDS[:2], variant)}, known, tmp_path)
    write({"state": summarise(RECORDS, variant)}, known, tmp_path)
    write({"images": summarise(RECORDS, variant)}, known, tmp_path)
    document = json.loads((tmp_path / "manipulation.json").read_text())
    assert set(document["tasks"]["reach"]) == {"real", "model"} == set(document["images"]["tasks"]["reach"])
    assert (tmp_path / "manipulation.png").stat().st_size > 10_000


def test_as_many_true_verdicts_only_are_as_many_as_anchors_ask_for() -> None:
    setting = images.ImageSetting(trials=160, anchors=0.1)
    assert setting.trials_of("real") == setting.labels == 16
    assert setting.trials_of("recommended") == setting.trials_of("truth") == 160


def test_trials_that_are_no_whole_rollouts_are_refused() -> None:
    with pytest.raises(ValueError, match="whole rollouts of 16, got 8"):
        images.ImageSetting(trials=80, anchors=0.1)


def test_rollouts_that_are_no_whole_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="whole rounds of 6 trials, got 16"):
        images.ImageSetting(num_envs=6)


def test_a_trial_pays_once_at_its_end_and_only_if_the_task_is_done_then() -> None:
    length = Length(steps=14, action_repeat=4)
    env = TrialMaker("reach", length, seeing=False)()
    rewards = []
    observation, _ = env.reset(seed=0)
    over = False
    while not over:
        observation, reward, over, truncated, _ = env.step(env.unwrapped.expert_action())  # type: ignore[attr-defined]
        rewards.append(reward)
        assert not truncated
    assert rewards == [0.0] * 13 + [1.0]
    assert observation["time"] == 1.0
    env.reset(seed=0)
    still = [env.step(np.zeros(4, np.float32)) for _ in range(14)]
    assert [step[1] for step in still] == [0.0] * 14
    assert still[-1][2]
    env.close()


def shown(rewards: list[float]) -> Episode:
    """A demonstration with a reward in each step at which the task is done."""
    steps = len(rewards)
    numbers = np.linspace(-9, 9, steps + 1, dtype=np.float32)[:, None]
    observation: dict[str, Any] = {"state": numbers.repeat(14, axis=1), "scene": numbers.repeat(39, axis=1)}
    observation["instruction"] = np.array(["open the drawer"] * (steps + 1))
    return Episode(observation, np.zeros((steps, 4)), np.array(rewards), False, True, True, "drawer-open", "open the drawer", 0)


def test_a_progress_model_sees_a_demonstration_up_to_the_step_that_first_did_it() -> None:
    cut = until_done(shown([0.0, 0.0, 1.0, 1.0]))
    assert len(cut) == len(cut.action) == 3
    assert len(cut.observation["state"]) == len(cut.observation["instruction"]) == 4
    assert len(until_done(shown([0.0, 0.0]))) == 2


def test_a_policy_takes_in_numbers_of_ordinary_size() -> None:
    episodes = [shown([0.0] * 20)]
    senses = Senses.of(episodes)
    seen = senses({**episodes[0].observation, "time": np.linspace(0, 1, 21, dtype=np.float32)[:, None]})
    assert seen.shape == (21, *senses.space.shape)
    assert seen[:, :54].mean(0) == pytest.approx(np.zeros(54), abs=1e-4)
    assert seen[:, :54].std(0) == pytest.approx(np.ones(54), abs=1e-3)
    assert senses.space.contains(seen[0])


def test_a_policy_that_is_told_where_the_target_lies_takes_in_three_numbers_more() -> None:
    episode = shown([0.0] * 20)
    episode.observation["scene"][:, -3:] += 2.0  # the target, off the hand by as much in every step
    senses = Senses.of([episode], towards=True)
    assert senses.space.shape == (Senses.of([episode]).space.shape[0] + 3,)
    assert senses.mean[-3:] == pytest.approx(np.full(3, 2.0), abs=1e-5)


@pytest.mark.needs_gl
def test_every_arm_trains_and_counts_the_verdicts_that_it_asked_for(tmp_path: Path) -> None:
    small = {"trials": 2, "rollout_trials": 1, "num_envs": 1, "progress_steps": 2, "judged_trials": 1}
    setting = replace(images.QUICK, length=Length(steps=14, image_size=32), **small)
    labels = {}
    for arm in images.ARMS:
        found = images.train(arm, "reach", setting, seed=0, folder=tmp_path, tell=lambda trials: None)
        labels[arm] = found["curve"][-1]["labels"]
        assert found["gradient_steps"] == setting.ppo["n_epochs"] * (1 if arm == "real" else 2)
        assert [point["trials"] for point in found["curve"]] == [0, 1 if arm == "real" else 2]
        assert len(found["pairs"]) == (labels[arm] if arm in ("mixture", "recommended") else 0)
    assert (labels["real"], labels["model"], labels["truth"]) == (1, 0, 2)
    kept = demonstrate(images.TASKS, setting.length, each=1, seed=0, folder=tmp_path / "demonstrations")
    assert [episode.task for episode in kept] == list(images.TASKS)


def test_every_arm_of_the_state_variant_begins_with_the_same_demonstrations() -> None:
    setting = replace(state.QUICK, demonstrations=2)
    make = state.Maker("reach", setting)
    shown = make.shown(seed=0)
    assert [episode.success for episode in shown] == [True, True]
    units = state.Units.of(shown, least=setting.least_unit)
    prior = concatenate([episode.transitions() for episode in replace(make, units=units).shown(seed=0)])
    assert len(prior) == 2 * setting.episode_steps
    assert prior.reward.mean() == pytest.approx(1.0)
    assert np.abs(prior.observation.mean(0)).max() < 0.5
    np.testing.assert_array_equal(prior.action, concatenate([episode.action for episode in shown]))
    agent = SAC("MlpPolicy", replace(make, units=units)(), device="cpu", buffer_size=100)
    state.remember(agent, prior)
    held: Any = agent.replay_buffer
    np.testing.assert_array_equal(held.observations[: held.pos, 0], prior.observation)
    assert (held.sample(50).dones == 0).all()
    envs = state.imagined("mixture", replace(make, units=units), prior, seed=0)
    np.testing.assert_array_equal(envs.engine.buffer.everything().observation, prior.observation)
    assert not envs.model.fitted
    envs.close()
