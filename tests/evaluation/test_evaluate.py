"""``wmrl evaluate``: any agent on any tasks, resumable, within bounds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.autoresearch.peer_layouts import LAYOUTS
from tests.autoresearch.small_tasks import write_small_task
from tests.language.chat_server import Answer, fails, serving
from tests.rollouts import programs
from wmrl_gym.cli import main
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.evaluation.run import MARKER, results_of
from wmrl_gym.evaluation.transcript import DamagedTranscript, Transcript, read

PROGRAM = f"{programs.__file__}:submits"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scores = [0.5 * place for place in range(1, 31)]
    root = tmp_path_factory.mktemp("tasks") / "small"
    return write_small_task(root, metric="rmse", kind="regression", larger_is_better=False, scores=scores)


def evaluated(out: Path, *words: Any, status: int = 0) -> dict[str, Any]:
    assert main(["evaluate", *map(str, words), "--out", str(out)]) == status
    return dict(json.loads((out / "results.json").read_text()))


def lines(out: Path, event: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in (out / "transcript.jsonl").read_text().splitlines()]
    return [line for line in every if line["event"] == event]


def test_a_program_is_graded_and_its_transcript_kept(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(tmp_path, PROGRAM, "--tasks", task, "--seeds", 2, "--max-turns", 2)
    shown = capsys.readouterr().out
    assert [each["task"] for each in found["episodes"]] == ["small", "small"]
    (first, second) = found["episodes"]
    # The sample submission says 0.5 everywhere; the hidden half is 2, 4, 6 and 8.
    assert first["score"] == second["score"] == pytest.approx(float(np.sqrt(np.mean((np.array([2, 4, 6, 8]) - 0.5) ** 2))))
    assert first["medal"] == "bronze"
    assert (first["turns"], first["valid_turns"], first["executions"], first["tokens"]) == (2, 2, 2, None)
    assert found["summary"]["all"]["percentile"]["low"] == found["summary"]["all"]["percentile"]["mean"]
    assert found["summary"]["all"]["medals"] == {"bronze": 2}
    assert (found["missing"], found["spent"]["executions"]) == ({}, 4)
    assert re.search(r"small +5\.025 .* 0 0 2 +100 %", shown)
    turns = lines(tmp_path, "turn")
    assert len(turns) == 4
    assert turns[0]["reply"] == programs.SUBMIT
    assert "shutil.copy" in turns[0]["code"]
    assert turns[0]["status"] == "valid"
    assert "validation rmse" in turns[0]["feedback"]
    assert turns[0]["validation_score"] > 0
    assert turns[0]["ran_s"] > 0
    hidden = f"{first['score']:.3f}"
    assert all(hidden not in json.dumps(turn) for turn in turns)  # told at the end alone


def test_what_is_there_is_not_run_again(task: Path, tmp_path: Path) -> None:
    words = ("scripted", "--skill", 0.9, "--tasks", task, "--max-turns", 1)
    first = evaluated(tmp_path, *words)
    second = evaluated(tmp_path, *words)
    assert first["episodes"] == second["episodes"]
    assert len(lines(tmp_path, "turn")) == 1


def test_json_is_all_that_is_printed(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(tmp_path, "random", "--tasks", task, "--max-turns", 1, "--json")
    assert json.loads(capsys.readouterr().out) == found
    (turn,) = lines(tmp_path, "turn")
    assert turn["status"] in ("valid", "runtime_error")


def test_the_same_seeds_say_the_same(task: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        evaluated(tmp_path / name, "random", "--tasks", task, "--max-turns", 2, "--seeds", 2)
    replies = [sorted((line["seed"], line["turn"], line["reply"]) for line in lines(tmp_path / name, "turn")) for name in "ab"]
    assert replies[0] == replies[1]
    assert len({reply for _, _, reply in replies[0]}) == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_competitions_of_other_benchmarks_are_read_as_they_are(layout: str, tmp_path: Path) -> None:
    folder = LAYOUTS[layout](tmp_path / "task")
    found = evaluated(tmp_path / "out", PROGRAM, "--tasks", folder, "--max-turns", 1)
    (episode,) = found["episodes"]
    assert episode["score"] is not None
    # DSBench has no teams, so that there is nothing to win.
    assert (episode["medal"] is None) == (layout == "dsbench")


def test_a_folder_of_another_evaluation_is_refused_with_what_differs(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "agent.py"
    program.write_text("def act(observation):\n    return 'DESCRIBE'\n")
    words = [f"{program}:act", "--tasks", str(task), "--max-turns", "1", "--out", str(tmp_path / "out")]
    assert main(["evaluate", *words]) == 0
    program.write_text("def act(observation):\n    return 'nothing'\n")
    capsys.readouterr()
    assert main(["evaluate", *words, "--seeds", "2"]) == 2
    assert "holds an evaluation with other settings (agent.sha256, seeds)" in capsys.readouterr().err
    assert main(["evaluate", *words, "--seeds", "2", "--fresh"]) == 0
    assert len(lines(tmp_path / "out", "end")) == 2
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/mine.txt").touch()
    assert main(["evaluate", *words[:-1], str(tmp_path / "notes")]) == 2
    assert "holds other files, and no evaluation" in capsys.readouterr().err
    assert main(["evaluate", *words[:-1], str(tmp_path / "notes"), "--fresh"]) == 2
    assert (tmp_path / "notes/mine.txt").exists()


def test_bounds_are_not_passed_and_larger_ones_go_on(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (PROGRAM, "--tasks", task, "--seeds", 3, "--max-turns", 2)
    found = evaluated(tmp_path, *words, "--max-executions", 5)
    assert (len(found["episodes"]), found["spent"]["executions"], found["missing"]) == (2, 4, {"not run": 1})
    said = capsys.readouterr().err
    assert "1 of 3 episodes were not run" in said
    assert "with larger bounds" in said
    found = evaluated(tmp_path, *words, "--max-executions", 6)
    assert (len(found["episodes"]), found["spent"]["executions"], found["missing"]) == (3, 6, {})


def completion(text: str) -> Answer:
    body = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 90, "completion_tokens": 10}}
    return lambda handler, _: handler.send(json.dumps(body).encode())


def test_a_server_that_fails_is_left_alone_and_asked_again_by_the_same_command(
    task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(fails(404, b'{"error": "no such model"}')) as server:
        words = ("--base-url", server.url, "--model", "small", "--tasks", task, "--seeds", 30, "--max-turns", 1, "--slots", 4)
        lost = evaluated(tmp_path, *words, status=1)
        assert len(server.requests) < 12
        assert lost["episodes"] == []
        assert lost["summary"]["all"]["percentile"]["mean"] is None
        assert "episodes were lost (refused: status 404" in capsys.readouterr().err
        server.answer = completion("DESCRIBE")
        found = evaluated(tmp_path, *words)
        assert len(found["episodes"]) == 30
        assert found["summary"]["all"]["tokens"] == found["spent"]["tokens"] == 3000
        assert "small" in json.dumps(found["agent"])


def test_agents_that_fail_are_counted_as_such(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(tmp_path, f"{programs.__file__}:raises", "--tasks", task)
    assert found["summary"]["all"]["agent_failures"] == 1
    assert (found["episodes"][0]["ended"], found["episodes"][0]["percentile"]) == ("agent", 0.0)
    assert "the agent failed, and has what it had reached; the first: ValueError: I cannot" in capsys.readouterr().err


def test_a_killed_evaluation_goes_on_where_it_stopped(
    task: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    out = tmp_path / "out"
    words = ["evaluate", PROGRAM, "--tasks", str(task), "--seeds", "8", "--max-turns", "2", "--slots", "2", "--out", str(out)]
    command = [sys.executable, "-c", f"from wmrl_gym.cli import main; main({words!r})"]
    for wanted in (2, 4):
        process = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 180
        while len(read(out / "transcript.jsonl").ends) < wanted and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = read(out / "transcript.jsonl")
    assert len(before.ends) >= 4
    with (out / "transcript.jsonl").open("a") as file:
        file.write('{"event": "turn", "task"')  # as it would be in the middle of a line
    assert len(results_of(out)["episodes"]) == len(before.ends)
    assert main(words) == 0
    after = read(out / "transcript.jsonl")
    assert {key: end["at"] for key, end in after.ends.items() if key in before.ends} == {
        key: end["at"] for key, end in before.ends.items()
    }
    found = json.loads((out / "results.json").read_text())
    assert [each["seed"] for each in found["episodes"]] == list(range(8))
    assert all(each["turns"] == 2 for each in found["episodes"])  # those of a try that was cut short are not counted
    assert found["spent"]["executions"] >= 16


def test_an_agent_that_hangs_does_not_outlive_a_killed_evaluation(
    task: Path, tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    spec = f"{programs.__file__}:sleeps"
    words = ["evaluate", spec, "--tasks", str(task), "--out", str(tmp_path)]
    command = [sys.executable, "-c", f"from wmrl_gym.cli import main; main({words!r})"]

    def living() -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if spec.encode() in (path / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    process = start(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not living() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living()
    os.killpg(process.pid, signal.SIGKILL)  # the agent is in a session of its own
    process.wait()
    while living() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert living() == []


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    transcript = Transcript(tmp_path)
    transcript.add({"event": "end", "task": "a", "seed": 0, "try": 1, "at": 1.0, "ended": "finished"})
    transcript.close()
    with (tmp_path / "transcript.jsonl").open("a") as file:
        file.write('{"event": "turn", "task": "a"}\n')
    with pytest.raises(DamagedTranscript, match="line 3 is damaged"):
        Transcript(tmp_path)


def test_a_policy_of_stable_baselines3_is_evaluated(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stable_baselines3 import PPO

    from wmrl_gym.envs.autoresearch import AutoResearchDesignEnv

    env = AutoResearchDesignEnv(task)
    PPO("MlpPolicy", env, n_steps=8, batch_size=8).save(tmp_path / "policy.zip")
    env.close()
    found = evaluated(tmp_path / "out", tmp_path / "policy.zip", "--tasks", task, "--seeds", 2)
    assert [each["turns"] for each in found["episodes"]] == [3, 3]
    assert "import" in lines(tmp_path / "out", "turn")[0]["code"] or lines(tmp_path / "out", "turn")[0]["reply"]
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8).save(tmp_path / "cart.zip")
    assert main(["evaluate", str(tmp_path / "cart.zip"), "--tasks", str(task), "--out", str(tmp_path / "cart")]) == 2
    assert "was trained on" in capsys.readouterr().err


def test_a_policy_of_a_comparison_is_evaluated(task: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file
    from stable_baselines3.common.policies import ActorCriticPolicy

    from wmrl_gym.study.config import MARKER as STUDY
    from wmrl_gym.study.config import PPO_SETTINGS

    logic = AutoResearchDesign(task)
    kwargs = PPO_SETTINGS["policy_kwargs"]
    policy = ActorCriticPolicy(logic.observation_space, logic.action_space, lambda _: 0.0, **kwargs)
    (tmp_path / "demo/real").mkdir(parents=True)
    save_file(policy.state_dict(), str(tmp_path / "demo/real/policy-0.safetensors"))
    (tmp_path / "demo" / STUDY).write_text(json.dumps({"ppo": PPO_SETTINGS}))
    found = evaluated(tmp_path / "out", tmp_path / "demo/real/policy-0.safetensors", "--tasks", task)
    assert found["episodes"][0]["turns"] == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "name one agent"),
        (["random", "--base-url", "http://127.0.0.1:1/v1"], "name one agent"),
        (["--base-url", "http://127.0.0.1:1/v1"], "give --model"),
        (["--base-url", "nowhere", "--model", "m"], "base_url must be an address"),
        (["randon"], "an agent is random, scripted, path.py:name"),
        (["nowhere.py:act"], "there is no file nowhere.py"),
        (["nowhere.zip"], "there is no file nowhere.zip"),
        ([f"{programs.__file__}:missing"], "has no missing"),
        (["random", "--tasks", "diabetis"], "did you mean 'diabetes'"),
        (["random", "--tasks", "./nowhere"], "does not exist"),
        (["random", "--seeds", "0"], "at least one seed"),
        (["random", "--slots", "0"], "--slots must be at least 1"),
        (["random", "--max-executions", "0"], "--max-executions must be positive"),
        (["random", "--max-tokens", "5"], "does not count tokens"),
        (["scripted", "--skill", "2"], r"skill must lie in \[0, 1\]"),
        (["random", "--sandbox", "none"], "no sandbox is called"),
    ],
)
def test_one_line_says_what_is_wrong(
    words: list[str], told: str, task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [] if "--tasks" in words else ["--tasks", str(task)]
    assert main(["evaluate", *words, *tasks, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told, line), line
    assert not (tmp_path / "out" / "results.json").exists()


def test_an_evaluation_says_what_it_ran_on(task: Path, tmp_path: Path) -> None:
    evaluated(tmp_path, "random", "--tasks", task, "--max-turns", 1)
    marker = json.loads((tmp_path / MARKER).read_text())
    assert marker["machine"]["versions"]["numpy"] == np.__version__
