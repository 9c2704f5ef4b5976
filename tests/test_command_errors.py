"""Whatever a command is told, it answers with one line that names what is wrong, and without a traceback."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from wmrl_gym.cli import main
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel, WorldModelError, load_model
from wmrl_gym.world_models.evaluation.fitting import FitPlan, read_fit

LONG = "x" * 5000
COLLECT = ["collect", "CartPole-v1", "--episodes", "1", "--out", "OUT"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set."""
    out = tmp_path_factory.mktemp("recorded")
    assert main(["collect", "CartPole-v1", "--episodes", "3", "--out", str(out), "--name", "cart-v0"]) == 0
    return out / "minari/cart-v0"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([*COLLECT, "--seed", str(10**20)], r"seeds must lie in \[0, 2147483648\)"),
        ([*COLLECT, "--seed", "-1"], r"seeds must lie in \[0, 2147483648\)"),
        ([*COLLECT, "--episodes", str(10**20)], r"seeds must lie in \[0, 2147483648\)"),
        ([*COLLECT, "--name", f"{LONG}-v0"], "the parts of --name must have at most 200 characters, got one of 5003"),
        ([*COLLECT, "--name", "a/../../b-v0"], "--name must be made of letters"),
        (["collect", LONG, "--episodes", "1", "--out", "OUT"], "doesn't exist"),
        (["collect", "CartPole-v1", "--out", LONG], "a name in its path is too long"),
        (["collect", "wmrl/AutoResearchDesign-v0", "--set", "limits=3"], "limits must be Limits or None, got 3"),
        (["collect", "wmrl/AutoResearchDesign-v0", "--set", "sandbox=3"], "sandbox must be a name or a sandbox, got 3"),
        (["collect", "wmrl/AutoResearchDesign-v0", "--set", "workers=1e9"], "workers must be a whole number, got 1000000000.0"),
        (["collect", "wmrl/AutoResearchDesign-v0", "--set", "max_turns=true"], "max_turns must be a whole number, got True"),
        (["collect", "wmrl/AutoResearchDesign-v0", "--set", "terminate_on=a"], "terminate_on must be a number or None, got 'a'"),
        (
            ["collect", "wmrl/AutoResearchDesign-v0", "--set", "task=3"],
            "task must be a name, a folder, or a list of these, got 3",
        ),
        (["fit", "DATA", "--set", "hidden=[1e9]"], "each width in hidden must be a whole number, got 1000000000.0"),
        (["fit", "DATA", "--set", "hidden=[100000000]"], "hidden=.100000000. makes 500,000,000 weights in 5 networks"),
        (["fit", "DATA", "--set", "hidden=[true]"], "each width in hidden must be a whole number, got True"),
        (["fit", "DATA", "--set", "hidden=abc"], "hidden must be a list of widths, got 'abc'"),
        (["fit", "DATA", "--set", "learning_rate=nan"], "learning_rate must be a number, got 'nan'"),
        (["fit", "DATA", "--set", "gradient_steps=1e999"], "gradient_steps must be positive and finite, got inf"),
        (["fit", "DATA", "--set", f"capacity={10**30}"], "capacity must be at most 2147483647"),
        (["fit", "DATA", "--set", "n_members=[]"], r"n_members must be a whole number, got \[\]"),
        (["fit", "DATA", "--seed", "-1"], "seed must be at least 0, got -1"),
        (["fit", "DATA", "--chunk", str(10**20)], "chunk must be at most 2147483647"),
        (["fit", LONG], "File name too long"),
        (["demo", "--seed", "-1", "--out", "OUT"], r"seed must lie in \[0, 2\*\*32\), got -1"),
        (["demo", "--seed", str(10**20), "--out", "OUT"], r"seed must lie in \[0, 2\*\*32\)"),
        (["fidelity", LONG, "DATA"], "File name too long"),
        (["tasks", "validate", LONG], "File name too long"),
        (["tasks", "new", LONG], "too long"),
        (["sandbox", "check", LONG], "no sandbox is called"),
    ],
)
def test_one_line_says_what_is_wrong(
    command: list[str],
    told: str,
    recorded: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([{"OUT": "out", "DATA": str(recorded)}.get(word, word) for word in command]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"wmrl {command[0]}")
    assert len(line) < 1100
    assert re.search(told, line), line
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def fitted_once(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short fit."""
    folder = tmp_path_factory.mktemp("fit") / "fit"
    steps = ["min_transitions=20", "max_gradient_steps=5", "hidden=[8]", "n_members=2", "n_elites=2"]
    command = ["fit", str(recorded), "--out", str(folder), *(word for step in steps for word in ("--set", step))]
    assert main(command) == 0
    return folder


@pytest.fixture
def fit(fitted_once: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(fitted_once, tmp_path / "fit"))


def change(path: Path, **changes: object) -> None:
    """Change what a document says, by hand."""
    document = json.loads(path.read_text())
    for place, value in changes.items():
        *above, key = place.split("__")
        inner = document
        for each in above:
            inner = inner[each]
        inner[key] = value
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "changes",
    [
        {"held_out": ["a"]},
        {"held_out": [0, 0]},
        {"held_out": [99]},
        {"held_out": [-1]},
        {"held_out": [True]},
        {"done": -1},
        {"done": 99},
        {"episodes": True},
        {"checkpoint": "../elsewhere"},
        {"checkpoint": ""},
        {"measures": {"wm/x": "a"}},
        {"plan__held_out": "a"},
        {"plan__seed": -1},
        {"plan__model": "none"},
        {"plan__settings": []},
    ],
    ids=str,
)
def test_a_fit_that_was_changed_by_hand_is_refused(changes: dict[str, object], fit: Path) -> None:
    assert read_fit(fit) is not None
    change(fit / "fit.json", **changes)
    with pytest.raises(ValueError, match=r"fit\.json is not the document of a fit, or is damaged"):
        read_fit(fit)


def test_a_damaged_random_state_is_named(fit: Path, recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(fit / "fit.json", rng={"bit_generator": "PCG64"}, done=1)
    settings = json.loads((fit / "fit.json").read_text())["plan"]["settings"]
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    capsys.readouterr()
    assert main(["fit", str(recorded), "--out", str(fit), *words]) == 2
    assert "holds no state of a random generator" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"settings__hidden": "abc"},
        {"settings__hidden": [10**9]},
        {"settings__n_members": 3},
        {"settings__n_members": "2"},
        {"settings__batch_size": -1},
        {"settings__learning_rate": None},
        {"settings__unheard_of": 1},
        {"settings": 3},
        {"added": 0},
        {"added": "a"},
        {"learnt": 10**12},
        {"fit__elites": [7]},
        {"fit__elites": []},
        {"fit__elites": ["a"]},
        {"fit__reward_factor": "a"},
        {"fit__reward_low": None},
        {"spaces": 3},
        {"contexts": 3},
    ],
    ids=str,
)
def test_a_model_that_was_changed_by_hand_is_refused(changes: dict[str, object], fit: Path) -> None:
    saved = fit / json.loads((fit / "fit.json").read_text())["checkpoint"]
    assert load_model(saved).fitted
    change(saved / "dynamics.json", **changes)
    with pytest.raises(WorldModelError, match=r"EnsembleDynamics (saved in|has)"):
        load_model(saved)


@pytest.mark.parametrize("settings", [{"n_trees": 0}, {"step": 3}, {"sample": 1}, {"neighbours": -2}, {"capacity": 1e9}], ids=str)
def test_an_outcome_model_that_was_changed_by_hand_is_refused(settings: dict[str, object], tmp_path: Path) -> None:
    from tests.bandit import Bandit
    from tests.drifting import fitted

    fitted(Bandit()).save(tmp_path)
    change(tmp_path / "outcome_model.json", **{f"settings__{name}": value for name, value in settings.items()})
    with pytest.raises(WorldModelError, match="has settings that no OutcomeModel has"):
        OutcomeModel().load(tmp_path)


def test_arguments_of_the_wrong_type_are_named() -> None:
    with pytest.raises(TypeError, match=r"n_trees must be a whole number, got 8\.5"):
        OutcomeModel(8.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="chunk must be a whole number, got True"):
        FitPlan("x", chunk=True)
    with pytest.raises(TypeError, match="gradient_steps must be a number, got '4'"):
        EnsembleDynamics(gradient_steps="4")  # type: ignore[arg-type]
