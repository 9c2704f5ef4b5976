"""Comparisons at equal wall-clock, with real execution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from wmrl_gym.cli import main
from wmrl_gym.commands.doctor import show
from wmrl_gym.corrections import EarlySchedule
from wmrl_gym.doctor import Finding
from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS, TRAIN_TASKS
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.study.config import ARMS, STUDY_TASKS, StudyConfig
from wmrl_gym.study.evaluation import GradedEpisode, mean_and_error
from wmrl_gym.study.run import Study, StudyMismatch
from wmrl_gym.study.settings import ArmSettings
from wmrl_gym.study.settings import table as tuned_table
from wmrl_gym.study.summary import Point, Row, sentence, table, time_to_reach
from wmrl_gym.study.training import (
    MeteredSandbox,
    anchor_choices,
    anchor_schedule,
    environments,
    open_sandbox,
    train,
    unchecked_distributions,
)

QUIET = Console(quiet=True)
SMALL = StudyConfig(
    arms=("real", "model", "mixture", "paper", "recommended"),
    tasks=("breast-cancer", "diabetes"),
    seconds=2.5,
    num_envs=16,
    real_envs=4,
    anchors=0.1,
    warmup=8,
    snapshots=2,
    final_episodes=2,
    pretrained=False,
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = open_sandbox(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def finished(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    folder = tmp_path_factory.mktemp("study")
    return folder, Study(SMALL, folder, console=QUIET).run(sandbox)


def test_every_arm_trains_pays_for_what_it_executes_and_is_graded_by_execution(finished: tuple[Path, list[Row]]) -> None:
    folder, rows = finished
    assert [row.arm for row in rows] == list(SMALL.arms)
    for row in rows:
        assert 0.0 <= row.reward[0] <= 1.0
        assert row.executions > 0
        assert row.curve[0].seconds < 0.5
        assert row.curve[0].executions == 0
        assert row.curve[-1].reward == row.reward[0]
        assert row.seconds >= SMALL.seconds
        assert sum(row.where.values()) == pytest.approx(row.seconds, rel=0.35)
    real = rows[0]
    assert all(row.steps > real.steps for row in rows[1:])
    assert (folder / "curves.png").stat().st_size > 10_000
    assert json.loads((folder / "results.json").read_text())["machine"]["cores"] >= 1


def test_with_a_pretrained_model_nothing_is_executed_before_the_first_imagined_step(sandbox: Sandbox) -> None:
    settings = ArmSettings(0.003, 0.01, num_envs=16, anchors=280, rollouts=24, learns=0)
    config = replace(
        SMALL, tasks=("phishing",), pretrained=True, settings={"model": settings, "recommended": settings}, seconds=35.0
    )
    meter = MeteredSandbox(sandbox, workers=2)
    envs = environments("model", config, sandbox=meter, seed=0)
    try:
        envs.reset(seed=0)
        model = envs.unwrapped.model  # type: ignore[attr-defined]
        assert model.fitted
        assert model.span.by_context == {"elsewhere": model.span.kept}
        _, rewards, _, _, _ = envs.step(envs.action_space.sample())
        assert rewards.shape == (SMALL.num_envs,)
        assert meter.runs == 0
    finally:
        envs.close()
    run = train("model", replace(config, seconds=1.0), sandbox=sandbox, seed=0)
    assert run.executions == 0
    assert run.steps > SMALL.num_envs
    anchored = train("recommended", replace(config, seconds=3.0), sandbox=sandbox, seed=0)
    assert anchored.executions > 0
    assert anchored.stats["debias/contextual"] == 1.0


def test_by_default_the_demo_is_on_tasks_that_the_model_has_never_seen() -> None:
    config = StudyConfig()
    assert config.arms == ("real", "model", "mixture", "recommended")
    assert config.names == HELD_OUT_TASKS
    assert replace(config, pretrained=False).names == STUDY_TASKS
    assert not set(HELD_OUT_TASKS) & set(TRAIN_TASKS)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_has_settings_and_a_schedule_that_spends_its_anchors(arm: str) -> None:
    for seconds in (1.0, 10.0, 35.0, 350.0):
        config = StudyConfig(seconds=seconds)
        chosen = config.settings_of(arm)
        assert config.ppo_of(arm)["learning_rate"] == chosen.rate
        assert config.ppo_of(arm)["batch_size"] == 3 * chosen.num_envs
        if arm not in ("real", "model"):
            schedule = anchor_schedule(arm, config)
            assert isinstance(schedule, EarlySchedule)
            assert sum(schedule.decide(episode).anchor for episode in range(schedule.episodes)) == chosen.anchors


def test_arms_that_were_not_tuned_take_the_settings_of_those_that_were() -> None:
    config = StudyConfig()
    assert config.settings_of("debias") == config.settings_of("paper")
    assert config.settings_of("smooth") == config.settings_of("recommended")
    assert {"real", "model", "mixture", "paper", "recommended"} <= tuned_table().keys()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 0.0}, "rate > 0"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"learns": -1}, "learns must be at least 0, got -1"),
        ({"early": 1.5}, r"early in \[0, 1\]"),
    ],
)
def test_arm_settings_out_of_range_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ArmSettings(**({"rate": 0.1, "entropy": 0.0} | given))


def test_other_settings_of_an_arm_are_another_comparison(tmp_path: Path) -> None:
    Study(StudyConfig(), tmp_path, console=QUIET)
    Study(StudyConfig(), tmp_path, console=QUIET)
    other = StudyConfig(settings={"recommended": ArmSettings(0.5, 0.01)})
    with pytest.raises(StudyMismatch, match=r"other settings \(settings\)"):
        Study(other, tmp_path, console=QUIET)


def test_a_finished_comparison_is_not_run_again(finished: tuple[Path, list[Row]], sandbox: Sandbox) -> None:
    folder, rows = finished
    meter = MeteredSandbox(sandbox, workers=2)
    again = Study(SMALL, folder, console=QUIET).run(meter)
    assert meter.runs == 0
    assert again == rows


def test_an_arm_without_a_record_is_trained_again_and_the_others_are_not(
    finished: tuple[Path, list[Row]], sandbox: Sandbox
) -> None:
    folder, _ = finished
    before = {arm: (folder / arm / "run.json").read_bytes() for arm in SMALL.arms}
    (folder / "model" / "run.json").unlink()
    (folder / "model" / "grades.json").unlink()
    Study(SMALL, folder, console=QUIET).run(sandbox)
    changed = [arm for arm in SMALL.arms if (folder / arm / "run.json").read_bytes() != before[arm]]
    assert changed == ["model"]


def test_a_folder_with_other_settings_is_refused(finished: tuple[Path, list[Row]]) -> None:
    folder, _ = finished
    with pytest.raises(StudyMismatch, match=r"other settings \(seed\): choose another folder with --out"):
        Study(StudyConfig(**{**_fields(SMALL), "seed": 9}), folder, console=QUIET)


def test_a_folder_of_other_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StudyMismatch, match="holds other files, and no comparison"):
        Study(SMALL, tmp_path, console=QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def _fields(config: StudyConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).__dataclass_fields__}


def test_the_same_seed_makes_the_same_anchor_choices(sandbox: Sandbox) -> None:
    choices = []
    for seed in (1, 1, 2):
        envs = environments("recommended", SMALL, sandbox=sandbox, seed=seed)
        choices.append(anchor_choices(envs.unwrapped.engine))  # type: ignore[attr-defined]
        envs.close()
    assert choices[0] == choices[1] != choices[2]
    assert 5 <= len(choices[0]) <= 15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ("real", "magic")}, r"unknown arms \['magic'\]"),
        ({"seconds": 0.0}, "seconds must be positive, got 0"),
        ({"anchors": 1.5}, r"anchors must be in \[0, 1\], got 1\.5"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StudyConfig(**options)


def test_time_to_reach_interpolates_and_knows_never() -> None:
    curve = (Point(0.0, 0, 0.5), Point(10.0, 5, 0.7), Point(20.0, 9, 0.6))
    assert time_to_reach(curve, 0.5) == 0.0
    assert time_to_reach(curve, 0.65) == pytest.approx(7.5)
    assert time_to_reach(curve, 0.71) is None


def test_means_and_errors_are_over_episodes() -> None:
    grades = [GradedEpisode("a", 0.5, 0.0), GradedEpisode("a", 0.7, 0.4), GradedEpisode("b", 0.9, 0.8)]
    assert mean_and_error(grades, "reward") == (pytest.approx(0.7), pytest.approx(0.2 / 3**0.5))


def test_the_sentence_does_not_flatter() -> None:
    def row(arm: str, reward: float, reached: float | None) -> Row:
        return Row(arm, (reward, 0.01), (0.5, 0.01), 10, 10, 40.0, reached, {}, ())

    worse = sentence([row("real", 0.8, 40.0), row("recommended", 0.7, None)])
    assert "0.100 ± 0.014 less" in worse
    assert "sooner" not in worse
    better = sentence([row("real", 0.7, 40.0), row("recommended", 0.9, 8.0)])
    assert "0.200 ± 0.014 more" in better
    assert "5.0 times sooner" in better
    at_once = sentence([row("real", 0.7, 40.0), row("recommended", 0.9, 0.0)])
    assert "no better than an untrained policy" in at_once
    assert "sooner" not in at_once
    assert table([row("real", 0.7, 40.0), row("recommended", 0.9, None)]).row_count == 2


def test_bad_arguments_of_the_command_are_one_line_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["demo", "--arms", "magic", "--out", str(tmp_path / "a")]) == 2
    assert "unknown arms ['magic']" in capsys.readouterr().err
    assert main(["demo", "--from-scratch", "--pretrained", "--out", str(tmp_path / "a")]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main(["demo", "--tasks", "brest-cancer", "--out", str(tmp_path / "b")]) == 2
    assert "did you mean 'breast-cancer'" in capsys.readouterr().err
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "precious.txt").write_text("mine")
    assert main(["demo", "--fresh", "--out", str(tmp_path / "c")]) == 2
    assert "remove it by hand" in capsys.readouterr().err
    assert (tmp_path / "c" / "precious.txt").exists()


def test_tasks_and_doctor_say_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "breast-cancer" in capsys.readouterr().out
    main(["doctor"])  # whose status says whether this machine has everything
    assert "ok  sandbox" in capsys.readouterr().out


def test_the_doctor_names_the_extra_that_brings_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    missing = Finding("a [strange] :car:", ok=False, advice="pip install 'wmrl-gym[sb3]'")
    show([missing, Finding("sandbox", ok=True)])
    assert capsys.readouterr().out == "no  a [strange] :car:: pip install 'wmrl-gym[sb3]'\nok  sandbox\n"


# Under nohup and in the background of a script SIGINT is ignored, here and in what is started from here.
LISTENS = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def test_ctrl_c_leaves_no_process_and_a_run_that_goes_on(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    demo = [sys.executable, "-c", LISTENS + "from wmrl_gym.cli import main; sys.exit(main())", "demo"]
    process = start(
        [*demo, "--seconds", "600", "--tasks", "diabetes", "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # Progress begins when the first arm does; the bar is drawn only at the end where there is no terminal.
    while not (out / "wmrl-study.json").is_file():
        assert process.poll() is None
        os.sched_yield()
    children = _descendants(process.pid)
    while not children:
        assert process.poll() is None
        children = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on where it stopped" in said
    assert [pid for pid in children if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"] == []
    assert not (out / "real" / "run.json").exists()


def _descendants(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    try:
        own = [int(child) for child in path.read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return own + [below for child in own for below in _descendants(child)]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_distributions_are_checked_again_after_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import tensor
    from torch.distributions import Distribution, Normal

    monkeypatch.setattr(Distribution, "_validate_args", True)  # whatever another library has asked for

    def failing() -> None:
        with unchecked_distributions():
            assert Normal(tensor(0.0), tensor(-1.0)).scale == -1.0, "nobody looked"
            raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        failing()
    with pytest.raises(ValueError, match="scale"):
        Normal(tensor(0.0), tensor(-1.0))
