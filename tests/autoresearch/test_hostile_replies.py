"""No reply hurts the process that trains: what exceeds the bounds of reading it is a syntax error, nothing an exception."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fuzz_replies import HOSTILE_CODE, HOSTILE_REPLIES, fenced, finally_bomb, hostile_replies
from benchmarks.tally import memory_mb
from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchEnv, AutoResearchText
from wmrl_gym.envs.autoresearch.reply import MAX_REPLY, syntax_error, understand
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.envs.autoresearch.static import scripts
from wmrl_gym.envs.autoresearch.static.facts import TOO_COMPLEX
from wmrl_gym.envs.autoresearch.static.scripts import Recent, ScriptUnreadable, read_script
from wmrl_gym.sandbox import Limits, Sandbox
from wmrl_gym.world_models import Interface, OutcomeModel


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> AutoResearchEnv:
    root = write_small_task(tmp_path_factory.mktemp("hostile") / "small", metric="mae", kind="regression", larger_is_better=False)
    return AutoResearchEnv(root, sandbox=sandbox, limits=Limits(wall_s=1.0, memory_mb=256), max_turns=1000, render_mode="ansi")


def step(env: AutoResearchEnv, reply: str) -> str:
    """One reply through everything that a step and a prediction do with it; returns its status."""
    logic = env.factored
    attempt = logic.attempt(logic.begin(None, {"context": np.zeros(1, np.int64)}), (reply,))
    assert np.isfinite(logic.features(attempt)).all()
    env.reset(seed=0)
    observation, _, _, _, info = env.step(reply)
    assert observation in env.observation_space
    assert info["reward_valid"], observation["feedback"]
    return STATUSES[info["status"]]


@pytest.mark.parametrize("place", range(len(HOSTILE_REPLIES)))
def test_a_reply_without_code_is_understood_at_once(place: int, env: AutoResearchEnv) -> None:
    assert step(env, HOSTILE_REPLIES[place]) in ("malformed", "described", "syntax_error", "no_submission")


@pytest.mark.parametrize("place", range(len(HOSTILE_CODE)))
def test_hostile_code_gets_a_verdict(place: int, env: AutoResearchEnv) -> None:
    assert step(env, fenced(HOSTILE_CODE[place])) in STATUSES


def test_pieces_of_hostile_replies_get_verdicts(env: AutoResearchEnv) -> None:
    for reply in islice(hostile_replies(np.random.default_rng(3)), len(HOSTILE_CODE) + len(HOSTILE_REPLIES), 140):
        step(env, reply)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(max_size=300), st.text(alphabet="`~\n pythonDESCRIBE<>/\r\x0c\u2028", max_size=300).map(fenced)))
def test_any_text_gets_a_verdict(env: AutoResearchEnv, reply: str) -> None:
    step(env, reply)


def test_a_compiler_s_bomb_is_a_syntax_error_and_takes_no_memory_here() -> None:
    before = memory_mb()
    code = finally_bomb(19)
    assert len(code) < 1000
    assert syntax_error(code) == TOO_COMPLEX
    assert syntax_error("x = 1") is None  # the next script is read as ever
    assert memory_mb() - before < 50


def test_a_reply_that_is_longer_than_the_action_space_allows_is_malformed() -> None:
    code = fenced("x = 1")
    assert understand(code + " " * (MAX_REPLY - len(code))).kind == "code"
    assert understand(code + " " * (MAX_REPLY - len(code) + 1)).kind == "malformed"


def test_a_declared_encoding_hides_nothing() -> None:
    """The sandbox runs the bytes, so that what is checked here must be what they say there."""
    facts = read_script("# coding: utf-7\n+AGkAbQBwAG8AcgB0ACAAbgBvAHQAaABpAG4AZw-").facts
    assert facts is not None
    assert facts.imports == {"nothing"}
    assert "unknown encoding" in str(syntax_error("# coding: martian\nx = 1"))


def test_a_byte_order_mark_before_code_is_no_syntax_error(sandbox: Sandbox) -> None:
    assert syntax_error("\ufeffx = 1") is None
    assert sandbox.run("\ufeffprint(1)", data_dir=None, limits=Limits()).stdout == "1\n"


@pytest.mark.parametrize("character", ["\x0c", "\u2028", "\x85", "\x1c"])
def test_what_ends_no_line_of_python_ends_none_of_a_reply(character: str) -> None:
    assert understand(fenced(f"x = '{character}'")).code == f"x = '{character}'\n"


def test_a_transcript_does_nothing_to_a_terminal(env: AutoResearchEnv) -> None:
    env.reset(seed=0)
    env.step("\x1b]0;owned\x07\x1b[2J\r\u202e\ud800 naïve\tπ")
    shown = env.render()
    assert shown is not None
    assert "\\x1b]0;owned\\x07\\x1b[2J\\r\\u202e\\ud800 naïve\tπ" in shown
    assert all(character.isprintable() or character in "\n\t" for character in shown)


def lose_the_reader() -> None:
    """End the process that reads scripts, as the machine might."""
    read_script(f"x = {os.urandom(4).hex()!r}")
    assert scripts._READER._child is not None
    scripts._READER._child.send_signal(signal.SIGKILL)
    scripts._READER._child.wait()


def test_a_reader_that_was_lost_is_started_again() -> None:
    lose_the_reader()
    assert syntax_error("after = = the_loss") is not None


def test_a_reader_that_cannot_be_started_is_unknown_and_not_a_verdict(
    env: AutoResearchEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_the_reader()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(ScriptUnreadable, match="was lost"):
            syntax_error("no_reader = = 1")
        env.reset(seed=0)
        _, reward, terminated, truncated, info = env.step(fenced("no_reader = = 1"))
    assert (reward, terminated, truncated, info["reward_valid"], info["status"]) == (0.0, False, True, False, -1)
    assert step(env, fenced("no_reader = = 1")) == "syntax_error"  # what was not known is not remembered


def test_several_threads_and_a_forked_child_ask_at_once() -> None:
    found: list[bool] = []
    codes = [f"x = {number}" + (" = = 1" if number % 2 else "") for number in range(40)]
    threads = [threading.Thread(target=lambda c=c: found.append((syntax_error(c) is None) == ("= =" not in c))) for c in codes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 40
    program = (
        "import os\nfrom wmrl_gym.envs.autoresearch.reply import syntax_error\nassert syntax_error('a = 1') is None\n"
        "pid = os.fork()\nfor number in range(50):\n    assert (syntax_error(f'{pid} = {number}') is None) is (pid < 0)\n"
        "assert pid == 0 or os.waitpid(pid, 0)[1] == 0\nprint('done')\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(root)})
    assert done.stdout.split() == ["done", "done"], done.stderr


def test_what_is_remembered_of_scripts_is_bounded_in_bytes() -> None:
    recent = Recent[str](1000)
    for number in range(100):
        recent.keep(number, "x", 90)
    assert recent.held <= 1000
    assert [recent.get(number) for number in (0, 88, 99)] == [None, None, "x"]
    recent.keep(99, "y", 2000)
    assert (recent.held, recent.get(99)) == (0, None)


@pytest.mark.parametrize("replies", [("hello",), ("DESCRIBE", "nothing"), ("```python\nx = = 1\n```",)])
def test_replies_without_code_teach_an_outcome_model_nothing_and_break_nothing(replies: tuple[str, ...], tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "small", metric="mae", kind="regression", larger_is_better=False)
    logic = AutoResearchText(root)
    state = logic.begin(None, {"context": np.zeros(len(replies), np.int64)})
    attempt = logic.attempt(state, replies)
    _, outcome = logic.gate(attempt)
    model = OutcomeModel()
    model.bind(Interface(logic.observation_space, logic.action_space, logic.reward_range, logic))
    no = np.zeros(len(replies), bool)
    model.update(Transitions((), (), outcome.value, (), no, no, ~no, attempt.task, attempt, outcome), np.random.default_rng(0))
    assert model.executions == 0
