"""``wmrl fit`` and ``wmrl fidelity``: from recorded episodes to a measured model, in one go or several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tests.bandit import Bandit
from tests.minari_sets import factored_episodes, random_episodes, write
from wmrl_gym.cli import main
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.world_models import EnsembleDynamics, WorldModelError, load_model
from wmrl_gym.world_models.evaluation.fitting import FitPlan, OfflineFit, recorded

SMALL: dict[str, Any] = {"hidden": [16], "min_transitions": 50, "max_gradient_steps": 10, "n_members": 3, "n_elites": 2}
SETTINGS = [f"--set={key}={json.dumps(value)}" for key, value in SMALL.items()]


def make_bandit() -> gym.Env[Any, Any]:
    return FactoredEnv(Bandit())


gym.register("tests/Bandit-v0", "tests.world_models.test_fitting:make_bandit")


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    env = gym.make("CartPole-v1")
    return write(tmp_path_factory.mktemp("minari"), "wmrl/cartpole-v0", env, random_episodes(env, 20))


@pytest.fixture(scope="module")
def bandits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    buffers, _ = factored_episodes(Bandit(), 60)
    return write(tmp_path_factory.mktemp("minari"), "wmrl/bandit-v0", gym.make("tests/Bandit-v0"), buffers)


def fit_of(dataset: Path, folder: Path, **plan: Any) -> OfflineFit:
    given = FitPlan(str(dataset), "dynamics", SMALL, **({"chunk": 60} | plan))
    episodes, interface = recorded(dataset, "dynamics")
    return OfflineFit(given, episodes, interface=interface, folder=folder)


def test_a_fit_that_was_interrupted_goes_on_as_if_it_had_not_been(cartpole: Path, tmp_path: Path) -> None:
    whole = fit_of(cartpole, tmp_path / "whole")
    expected = whole.run()

    class Interrupted(Exception):
        pass

    def after_two(done: int, measures: dict[str, float], seen: list[int] = []) -> None:  # noqa: B006 - counts calls
        seen.append(done)
        if len(seen) == 2:
            raise Interrupted

    first = fit_of(cartpole, tmp_path / "parts")
    with pytest.raises(Interrupted):
        first.run(after_two)
    second = fit_of(cartpole, tmp_path / "parts")
    assert 0 < second.done < len(second.training)
    assert second.run() == expected
    left, right = (next(path.glob("model-*/dynamics.safetensors")).read_bytes() for path in (whole.folder, second.folder))
    assert left == right


def test_held_out_episodes_are_never_learnt_from(cartpole: Path, tmp_path: Path) -> None:
    fit = fit_of(cartpole, tmp_path, held_out=0.25)
    fit.run()
    assert len(fit.held_out) == 5
    assert set(fit.held_out).isdisjoint(fit.training)
    assert isinstance(fit.model, EnsembleDynamics)
    assert fit.model.transitions == sum(len(fit.episodes.read(number)) for number in fit.training)


def test_a_folder_of_another_fit_is_refused(cartpole: Path, tmp_path: Path) -> None:
    fit_of(cartpole, tmp_path).run()
    with pytest.raises(ValueError, match=r"holds another fit .*seed: 0, not 7"):
        fit_of(cartpole, tmp_path, seed=7)


def test_too_few_episodes_are_an_error(cartpole: Path, tmp_path: Path) -> None:
    plan = FitPlan(str(cartpole), "dynamics", SMALL | {"min_transitions": 50_000})
    episodes, interface = recorded(cartpole, "dynamics")
    with pytest.raises(WorldModelError, match=r"18 episodes of .* too few for EnsembleDynamics"):
        OfflineFit(plan, episodes, interface=interface, folder=tmp_path).run()


def test_the_commands_fit_and_measure_a_dynamics_model(
    cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fit"
    assert main(["fit", str(cartpole), "--out", str(out), "--held-out", "0.2", *SETTINGS]) == 0
    assert "4 of 20 episodes were held out" in capsys.readouterr().out
    assert main(["fit", str(cartpole), "--out", str(out), "--held-out", "0.2", *SETTINGS]) == 0  # nothing is left to do
    assert main(["fidelity", str(out), str(cartpole), "--horizons", "1,3"]) == 0
    said = capsys.readouterr().out
    assert "termination F1" in said
    held_out = json.loads((out / "fit.json").read_text())["held_out"]
    report = json.loads((out / "fidelity.json").read_text())
    assert report["transitions"] == sum(len(recorded(cartpole, "dynamics")[0].read(number)) for number in held_out)
    assert report["horizon"]["steps"] == [1, 3]
    assert (out / "fidelity.png").stat().st_size > 10_000
    assert main(["fidelity", str(out), str(cartpole), "--episodes", "all", "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "fidelity.json").read_text())["transitions"] > report["transitions"]


def test_the_commands_fit_and_measure_an_outcome_model(bandits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--set", "n_trees=12", "--set", "encoder=none"]
    assert main(["fit", str(bandits), "--model", "outcome", "--out", str(tmp_path), *settings]) == 0
    assert main(["fidelity", str(tmp_path), str(bandits)]) == 0
    assert "status accuracy" in capsys.readouterr().out
    report = json.loads((tmp_path / "fidelity.json").read_text())
    assert report["model"] == "OutcomeModel"
    assert np.sum(report["status"]["confusion"]) == report["reward"]["n"] > 0


def test_what_is_collected_from_a_factored_environment_can_be_learnt_from(tmp_path: Path) -> None:
    out, name = str(tmp_path / "collected"), "wmrl/bandit-v0"
    assert main(["collect", "tests/Bandit-v0", "--episodes", "12", "--out", out, "--name", name]) == 0
    episodes, _ = recorded(tmp_path / "collected" / "minari" / name, "outcome")
    for transitions in episodes:
        assert transitions.outcome is not None
        assert transitions.reward[-1] == pytest.approx(max(0.0, transitions.outcome.value.max()))
    assert main(["fit", episodes.source, "--model", "outcome", "--out", str(tmp_path / "fit"), "--set=encoder=none"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "DATASET", "--model", "oracle"], "the model must be one of dynamics, outcome, llm, progress, got 'oracle'"),
        (["fit", "DATASET", "--set", "hidden"], "--set takes KEY=VALUE, got 'hidden'"),
        (["fit", "DATASET", "--set", "depth=3"], "EnsembleDynamics does not take these settings"),
        (["fit", "DATASET", "--held-out", "1"], r"held_out must lie in [0, 1), got 1.0"),
        (["fit", "DATASET", "--model", "outcome"], "OutcomeModel needs a factored environment"),
        (["fit", "wmrl/nothing-v0"], "there is no Minari data set wmrl/nothing-v0"),
        (["fit", "DATASET", "--set", f"depth={'[' * 100_000}"], "EnsembleDynamics does not take these settings"),
        (["fidelity", "EMPTY", "DATASET"], "no world model is saved in"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, *, cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"DATASET": str(cartpole), "EMPTY": str(tmp_path)}
    assert main([names.get(each, each) for each in arguments] + ["--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_saved_model_is_loaded_whatever_its_kind(tmp_path: Path) -> None:
    EnsembleDynamics((8, 8), n_members=3, n_elites=2).save(tmp_path)
    model = load_model(tmp_path)
    assert isinstance(model, EnsembleDynamics)
    assert model.settings.hidden == (8, 8)


@pytest.mark.parametrize("command", ["fit", "fidelity"])
@pytest.mark.parametrize("document", ["", "[]", "null", "{}", '{"plan": 3}', "[" * 100_000])
def test_another_programs_fit_json_is_one_line(
    document: str, command: str, *, cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fit"
    folder.mkdir()
    (folder / "fit.json").write_text(document)
    where = [str(cartpole), "--out", str(folder)] if command == "fit" else [str(folder), str(cartpole)]
    assert main([command, *where]) == 2
    assert "fit.json is not the document of a fit, or is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("out", ["file", "x" * 300])
def test_a_place_that_can_be_no_folder_is_one_line(
    out: str, *, cartpole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["fit", str(cartpole), "--out", str(tmp_path / out)]) == 2
    assert "choose another folder with --out" in capsys.readouterr().err
