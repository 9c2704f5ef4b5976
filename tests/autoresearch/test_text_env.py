"""The text environment: every rung of the ladder by real code, and what an agent sees and does not see."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.autoresearch.small_tasks import IDS, write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchEnv, AutoResearchText, load_task
from wmrl_gym.envs.autoresearch.rules import STATUSES, ladder_value
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.sandbox import ExecutionResult, Limits, Sandbox

LADDER = {
    "malformed": ("I do not know.", 0.0),
    "described": ("DESCRIBE", 0.0),
    "syntax_error": ("```python\nx = = 1\n```", 0.0),
    "runtime_error": ("```python\nprint('here')\n1 / 0\n```", 0.1),
    "timeout": ("```python\nwhile True: pass\n```", 0.1),
    "no_submission": ("```python\nprint('done')\n```", 0.2),
}


def submit(*values: object, ids: tuple[str, ...] = IDS) -> str:
    """A reply whose code writes these predictions."""
    lines = "\\n".join(["id,y", *(f"{name},{value}" for name, value in zip(ids, values, strict=True))])
    return f'```python\nimport os\nopen(os.environ["SUBMISSION_PATH"], "w").write("{lines}\\n")\n```'


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Regression on 1..8; a constant shift has that shift as its RMSE, and the board is 0.2, 0.4, 0.6, 0.8."""
    return write_small_task(tmp_path_factory.mktemp("text") / "shift", metric="rmse", kind="regression", larger_is_better=False)


def shifted(validation: float, test: float) -> str:
    return submit(*(i + 1 + (test if i % 2 else validation) for i in range(8)))


def make(directory: Path, sandbox: Sandbox, **options: Any) -> AutoResearchEnv:
    return AutoResearchEnv(directory, sandbox=sandbox, limits=Limits(wall_s=1.0), **options)


@pytest.mark.parametrize("status", LADDER)
def test_each_rung_of_the_ladder_is_reached_by_real_code(status: str, directory: Path, sandbox: Sandbox) -> None:
    reply, value = LADDER[status]
    env = make(directory, sandbox, max_turns=1)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(reply)
    assert (reward, terminated, truncated) == (value, True, False)
    assert STATUSES[info["status"]] == status
    assert info["reward_valid"]
    assert observation in env.observation_space
    assert status in observation["feedback"] or status == "described"
    assert (env.last_cost["wall_s"] > 0) == (status in ("runtime_error", "timeout", "no_submission"))


def test_a_valid_submission_pays_the_hidden_part_and_shows_the_other(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, max_turns=1)
    env.reset(seed=0)
    observation, reward, *_, info = env.step(shifted(0.5, 0.1))
    assert STATUSES[info["status"]] == "valid"
    assert reward == 1.0
    assert observation["best"][0] == pytest.approx(0.75)
    assert "validation rmse: about 0.5000 (smaller is better), beats 50% of the leaderboard" in observation["feedback"]


@pytest.mark.parametrize("feedback", ["validation", "none", "test"])
def test_info_tells_the_hidden_score_at_the_end_alone(feedback: str, directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, max_turns=3, feedback=feedback)
    env.reset(seed=0)
    infos = [env.step(reply)[4] for reply in (shifted(0.5, 0.1), "no code", shifted(0.7, 0.3))]
    assert [info["task_name"] for info in infos] == ["shift"] * 3
    assert [info["status_name"] for info in infos] == ["valid", "malformed", "valid"]
    seen = {"validation_score"} if feedback == "validation" else set()
    hidden = {"test_score", "percentile"}
    keys = seen | hidden
    assert [keys & set(info) for info in infos] == [seen, set(), seen | hidden]
    if feedback == "validation":  # as the feedback says it, in steps
        assert infos[0]["validation_score"] == pytest.approx(0.5)
    # "none" hides what is shown, and the best on validation is paid all the same
    assert (infos[2]["test_score"], infos[2]["percentile"]) == (pytest.approx(0.1), 1.0)


def test_an_episode_without_a_submission_beats_nobody_and_has_no_score(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, max_turns=1)
    env.reset(seed=0)
    *_, info = env.step("no code")
    assert info["percentile"] == 0.0
    assert "test_score" not in info


def test_feedback_never_holds_the_test_score(directory: Path, sandbox: Sandbox) -> None:
    task = load_task(directory)
    env = make(directory, sandbox, max_turns=9)
    env.reset(seed=0)
    for number, test in enumerate((0.31, 0.47, 0.73)):
        validation = 0.1 + number / 10
        graded = grade(task, ("id,y\n" + "".join(f"t{i},{i + 1 + (test if i % 2 else validation)}\n" for i in range(8))).encode())
        assert (graded.validation, graded.test) == pytest.approx((validation, test))
        observation, reward, *_, info = env.step(shifted(validation, test))
        told = "".join(str(value) for value in observation.values()) + str(info) + str(reward)
        assert "validation rmse: about" in told
        assert f"{test:.2f}"[1:] not in told
        percentile = float(task.leaderboard.percentile(graded.test))
        assert f"{percentile:.0%} " not in told
        assert str(float(ladder_value(percentile))) not in told


def test_both_modes_of_reward_have_the_same_return(directory: Path, sandbox: Sandbox) -> None:
    replies = ["DESCRIBE", LADDER["runtime_error"][0], shifted(0.1, 0.5), shifted(0.1, 0.7)]
    returns = {}
    for mode in ("final", "improvement"):
        env = make(directory, sandbox, reward=mode)
        env.reset(seed=0)
        steps = [env.step(reply) for reply in replies]
        returns[mode] = [step[1] for step in steps]
        assert [step[2] for step in steps] == [False, False, False, True]
        assert [step[4]["reward_due"] for step in steps] == (
            [False] * 3 + [True] if mode == "final" else [False, True, True, True]
        )
    assert returns["final"] == [0, 0, 0, 0.75]
    assert returns["improvement"] == pytest.approx([0, 0.1, 0.65, 0])


def test_terminate_on_ends_the_episode_early(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, terminate_on=0.9)
    env.reset(seed=0)
    assert env.step(shifted(0.5, 0.5))[2] is False
    _, reward, terminated, truncated, _ = env.step(shifted(0.1, 0.3))
    assert (reward, terminated, truncated) == (0.875, True, False)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        ("os.mkdir(path)", "is a directory"),
        ("os.symlink('/etc/passwd', path)", "is a symbolic link"),
        ("os.mkfifo(path)", "is a fifo"),
        ("open(path, 'w').close()", "the submission is empty"),
        ("open(path, 'w').write('id,y\\n')", "8 of 8 ids are missing"),
        ("open(path, 'w').write('id,y\\nt0,nan\\n')", "7 of 8 ids are missing|not a finite number"),
    ],
)
def test_a_bad_file_at_the_submission_path_is_a_verdict(code: str, verdict: str, directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, max_turns=1)
    env.reset(seed=0)
    reply = f'```python\nimport os\npath = os.environ["SUBMISSION_PATH"]\n{code}\n```'
    observation, reward, *_ = env.step(reply)
    assert reward == 0.2
    assert re.search(verdict, observation["feedback"]), observation["feedback"]


class LostSandbox:
    """A sandbox back end whose machine is gone."""

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        return ExecutionResult.lost("the machine is gone")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("mode", ["final", "improvement"])
def test_a_lost_sandbox_is_unknown_and_not_a_verdict(mode: str, directory: Path) -> None:
    env = make(directory, LostSandbox(), reward=mode)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(LADDER["no_submission"][0])
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info == {
        "context": 0,
        "task_name": "shift",
        "status": -1,
        "status_name": "",
        "reward_due": False,
        "reward_valid": False,
    }
    assert "unknown: the sandbox failed (the machine is gone)" in observation["feedback"]
    with pytest.raises(gym.error.ResetNeeded, match="the episode is over"):
        env.step("DESCRIBE")


def test_what_is_printed_is_bounded_and_its_end_is_kept(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox)
    env.reset(seed=0)
    observation, *_ = env.step(
        "```python\nprint('a' * 50_000)\nprint('the end')\nraise ValueError('b' * 50_000 + 'the cause')\n```"
    )
    assert observation in env.observation_space
    assert "the end" in observation["feedback"]
    assert "the cause" in observation["feedback"]
    assert len(observation["feedback"]) < 6000


def test_a_description_is_the_file_and_costs_a_turn(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox)
    first, info = env.reset(seed=0)
    assert info == {
        "context": 0,
        "task_name": "shift",
        "status": -1,
        "status_name": "",
        "reward_due": False,
        "reward_valid": True,
    }
    assert (first["turn"], first["max_turns"], first["feedback"]) == (0, 4, "")
    assert "DATA_DIR" in first["task"]
    observation, *_ = env.step("DESCRIBE")
    assert observation["feedback"] == (directory / "description.md").read_text().rstrip()
    assert observation["turn"] == 1


def test_a_description_that_is_too_long_keeps_its_beginning(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "long", metric="mae", kind="regression", larger_is_better=False)
    (root / "description.md").write_text("# The beginning\n" + "x" * 20_000)
    env = AutoResearchEnv(root)
    env.reset(seed=0)
    observation, *_ = env.step("DESCRIBE")
    assert observation in env.observation_space
    assert observation["feedback"].startswith("# The beginning")
    assert observation["feedback"].endswith("characters cut]")


def test_render_shows_the_transcript_and_needs_a_reset(directory: Path, sandbox: Sandbox) -> None:
    env = make(directory, sandbox, render_mode="ansi")
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) before render\(\)"):
        env.render()
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\) before step\(\)"):
        env.step("DESCRIBE")
    env.reset(seed=0)
    env.step("Hm.\nDESCRIBE")
    transcript = env.render()
    assert transcript is not None
    assert transcript.splitlines()[0] == "task: shift"
    assert "Hm." in transcript
    assert "Predict y from x." in transcript
    with pytest.raises(ValueError, match="render_mode must be one of"):
        make(directory, sandbox, render_mode="human")


def test_the_same_seed_gives_the_same_task_and_start(tmp_path: Path) -> None:
    names = [write_small_task(tmp_path / name, metric="mae", kind="regression", larger_is_better=False) for name in "abcdef"]
    envs = [AutoResearchEnv(names) for _ in range(2)]
    drawn = []
    for seed in range(12):
        (first, one), (second, two) = (env.reset(seed=seed) for env in envs)
        assert one == two
        assert first == second
        drawn.append(one["context"])
    assert len(set(drawn)) > 2


def test_the_task_of_an_episode_can_be_chosen(tmp_path: Path) -> None:
    paths = [
        write_small_task(tmp_path / name, metric="mae", kind="regression", larger_is_better=False) for name in ("ant", "bee")
    ]
    env = AutoResearchEnv(paths)
    assert env.factored.contexts == ("ant", "bee")
    assert env.reset(options={"task": "bee"})[1]["context"] == 1
    assert env.reset(options={"task": paths[0]})[1]["context"] == 0
    with pytest.raises(ValueError, match="'be' is not in this environment, did you mean 'bee'"):
        env.reset(options={"task": "be"})
    with pytest.raises(ValueError, match=r"the only option is 'task', got \['tusk'\]"):
        env.reset(options={"tusk": "bee"})


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"task": "digit"}, ValueError, "did you mean 'digits'"),
        ({"task": []}, ValueError, "at least one task"),
        ({"task": ["digits", "digits"]}, ValueError, "different names"),
        ({"task": "digits", "max_turns": 0}, ValueError, "max_turns must be at least 1"),
        ({"task": "digits", "reward": "sparse"}, ValueError, "got 'sparse'"),
    ],
)
def test_bad_arguments_are_clear_errors(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AutoResearchEnv(**arguments)


def test_gymnasium_finds_nothing_to_warn_about(directory: Path, sandbox: Sandbox) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("wmrl/AutoResearch-v0", task=["digits", "cars-mpg"], sandbox="local")
        check_env(env.unwrapped)
        env.close()


def test_a_task_of_its_own_limits_is_run_within_them(directory: Path) -> None:
    assert AutoResearchText(directory).limits == (Limits(wall_s=5.0),)
    assert AutoResearchText("digits").limits[0].wall_s == 30.0


def test_features_and_gate_of_a_batch_of_replies(directory: Path, sandbox: Sandbox) -> None:
    logic = AutoResearchText(directory, sandbox=sandbox)
    replies = tuple(reply for reply, _ in LADDER.values())
    state = logic.begin(None, {"context": np.zeros(len(replies), dtype=np.int64)})
    attempt = logic.attempt(state, replies)
    features = logic.features(attempt)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()
    assert list(logic.text(attempt))[2] == "x = = 1\n"
    certain, outcome = logic.gate(attempt)
    assert certain.tolist() == [True, True, True, False, False, False]
    assert [STATUSES[status] for status in outcome.status[:3]] == ["malformed", "described", "syntax_error"]
    with pytest.raises(TypeError, match="must be a str, got int"):
        logic.attempt(state, (1,) * len(replies))
    with pytest.raises(ValueError, match="expected 6 replies, got 1"):
        logic.attempt(state, ("DESCRIBE",))


def test_predicted_feedback_has_the_form_of_the_real_one(directory: Path, sandbox: Sandbox) -> None:
    logic = AutoResearchText(directory, sandbox=sandbox, limits=Limits(wall_s=1.0))
    replies = (*(LADDER[name][0] for name in ("syntax_error", "runtime_error", "timeout", "no_submission")), shifted(0.5, 0.5))
    attempt = logic.attempt(logic.begin(None, {"context": np.zeros(5, dtype=np.int64)}), replies)
    certain, gated = logic.gate(attempt)
    real = logic.execute(attempt)
    predicted = logic.describe(attempt, real)
    for i, (truth, guess) in enumerate(zip(real.feedback, predicted.feedback, strict=True)):
        if not certain[i]:
            assert guess.splitlines()[:2] == truth.splitlines()[:2]
    assert predicted.feedback[4].splitlines()[2].startswith("validation rmse: about 0.5000 (smaller is better), beats 50%")
    assert logic.describe(attempt, gated).feedback[0] == gated.feedback[0]
