"""A progress model from recorded episodes, and how good it is, by the commands."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from tests.manipulation.clips import Bars, demonstrations
from wmrl_gym import batch
from wmrl_gym.cli import main
from wmrl_gym.data.demonstrations import Collection, EpisodeFolder, run_episode
from wmrl_gym.data.minari import MinariEpisodes, write_minari
from wmrl_gym.world_models import Interface, ProgressModel, evaluate
from wmrl_gym.world_models.evaluation.fitting import FitPlan, OfflineFit


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes in which the bar that was asked for grows, and every third time the other one."""
    root = tmp_path_factory.mktemp("bars")
    gym.register("tests/Bars-v0", "tests.manipulation.clips:Bars")
    env = gym.make("tests/Bars-v0")
    folder = EpisodeFolder(root / "kept", Collection("tests/Bars-v0", {}, "scripted", 0, 30, {}))
    for seed in range(36):
        action = np.array([-1.0 if seed % 3 == 2 else 1.0], np.float32)
        folder.add(run_episode(env, lambda env, observation, action=action: action, seed=seed))
    written = write_minari(folder, env, root / "sets", dataset_id="tests/bars-v0")
    env.close()
    del gym.registry["tests/Bars-v0"]
    return written


def test_fit_learns_from_recorded_episodes_and_fidelity_tells_success_from_failure(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "update_steps=150", "--set", "min_clips=4", "--set", "collapse=success"]
    out = str(tmp_path / "fit")
    assert main(["fit", str(recorded), "--model", "progress", *settings, "--held-out", "0.25", "--out", out]) == 0
    assert main(["fidelity", out, str(recorded)]) == 0
    report = json.loads((tmp_path / "fit" / "fidelity.json").read_text())
    assert report["model"] == "ProgressModel"
    assert (report["reward"]["n"], report["reward"]["n_unknown"]) == (9, 0), "an episode is paid once"
    assert report["reward"]["rank_correlation"] > 0.5
    assert report["termination"] is report["horizon"] is None, "it is told what is observed"
    assert "ProgressModel on" in capsys.readouterr().out


def test_a_fit_that_goes_on_has_not_forgotten_the_episodes_of_before(recorded: Path, tmp_path: Path) -> None:
    episodes = MinariEpisodes(recorded)
    interface = Interface(episodes.observation_space, episodes.action_space)
    plan = FitPlan(str(recorded), "progress", {"update_steps": 1, "min_clips": 1}, held_out=0.0, chunk=40)

    class Stop(Exception):
        pass

    def stop(done: int, measures: dict[str, float]) -> None:
        raise Stop

    with pytest.raises(Stop):
        OfflineFit(plan, episodes, interface=interface, folder=tmp_path).run(stop)
    again = OfflineFit(plan, episodes, interface=interface, folder=tmp_path)
    assert 0 < again.done < len(episodes)
    assert again.run()["wm/clips"] == len(episodes)


def test_every_episode_is_judged_from_its_beginning_whatever_is_judged_beside_it() -> None:
    model = ProgressModel(collapse="success", seed=0)
    shown = demonstrations(12)
    model.fit(shown, steps=60)
    env = Bars()
    interface = Interface(env.observation_space, env.action_space)
    data = batch.concatenate([episode.transitions() for episode in shown[:5]])
    together = evaluate(model, data, interface=interface)
    one_by_one = evaluate(model, data, interface=interface, batch_size=1)
    np.testing.assert_allclose(together.scatter, one_by_one.scatter, atol=1e-5)
    expected = [model.success(each.observation["image"], each.instruction)[-1] for each in shown[:5]]
    np.testing.assert_allclose(together.scatter[:, 1], expected, atol=1e-5)
