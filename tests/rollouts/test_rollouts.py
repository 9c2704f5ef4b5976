"""Many rollouts at once, whatever their agents do."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.language.chat_server import Answer, Handler, dripping, endless, fails, html, serving
from tests.rollouts import programs
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.rollouts import Budget, CallableAgent, ChatAgent, ProcessAgent, Rollout, Rollouts, groups
from wmrl_gym.sandbox import ExecutionResult, Limits
from wmrl_gym.world_models import ChatClient

PROGRAMS = Path(programs.__file__)


def client(url: str, **options: Any) -> ChatClient:
    return ChatClient(url, "small", **{"backoff_s": 0.0, "timeout_s": 20.0, "retries": 1, "max_tokens": 100} | options)


def counted(text: str, prompt: int = 30, completion: int = 10) -> Answer:
    body = {
        "choices": [
            {
                "message": {"role": "assistant", "content": text},
                "logprobs": {"content": [{"token": "DES", "logprob": -0.25}, {"token": "CRIBE", "logprob": -0.5}]},
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion},
    }
    return lambda handler, _: handler.send(json.dumps(body).encode())


def collect(logic: AutoResearchText, agent: Any, count: int = 1, **options: Any) -> list[Rollout]:
    found = list(Rollouts(logic, agent, **options).collect(groups(["small"], range(count))))
    return sorted(found, key=lambda each: each.start.seed)


def test_a_server_has_a_conversation_for_each_rollout_and_tokens_are_kept(logic: AutoResearchText) -> None:
    with serving(counted("<think>```python\nno\n```</think>DESCRIBE")) as server:
        server.crowd = 4
        found = collect(logic, ChatAgent(client(server.url), system="Be brief."), 4, slots=4)
    assert [(each.ended, each.reward, len(each.turns)) for each in found] == [("finished", 0.0, 3)] * 4
    assert {turn.status for each in found for turn in each.turns} == {"described"}
    said = found[0].turns[0].said
    assert (said.action, said.prompt_tokens, said.completion_tokens) == ("DESCRIBE", 30, 10)
    assert said.tokens == (("DES", -0.25), ("CRIBE", -0.5))
    assert found[0].spent_tokens == 3 * 40
    longest = max((body["messages"] for body in server.requests), key=len)
    assert [each["role"] for each in longest] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert longest[2]["content"] == "DESCRIBE"  # the thought is not told again
    assert "Predict y from x." in longest[3]["content"]
    assert "1 of 3 turns are left." in longest[5]["content"]
    assert len({body["seed"] for body in server.requests}) == 12


def test_replies_of_several_rollouts_are_asked_for_at_once(logic: AutoResearchText) -> None:
    def together(handler: Handler, body: dict[str, Any]) -> None:
        assert handler.server.crowded.wait(60)  # until three have come
        counted("DESCRIBE")(handler, body)

    with serving(together) as server:
        server.crowd = 3
        collect(logic, ChatAgent(client(server.url, timeout_s=100.0)), 3, slots=3)
        assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (fails(429), "status 429"),
        (fails(500), "status 500"),
        (fails(404), "refused: status 404"),
        (html, "garbled"),
        (endless, "too_long"),
        (dripping, "slow"),
    ],
)
def test_what_a_server_fails_to_say_is_unknown_and_no_zero(answer: Answer, kind: str, logic: AutoResearchText) -> None:
    with serving(answer) as server:
        timeout_s = 1.0 if kind == "slow" else 20.0
        (found,) = collect(logic, ChatAgent(client(server.url, timeout_s=timeout_s)))
    assert (found.ended, found.reward, found.kind) == ("lost", None, "server")
    assert kind in found.problem
    assert not found.known


def test_a_busy_server_is_asked_again(logic: AutoResearchText) -> None:
    with serving(fails(429)) as server:

        def first_busy(handler: Handler, body: dict[str, Any]) -> None:
            server.answer = counted("DESCRIBE")
            fails(429, retry_after="0")(handler, body)

        server.answer = first_busy
        (found,) = collect(logic, ChatAgent(client(server.url)))
    assert found.ended == "finished"
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("raises", "raised", "ValueError: I cannot"),
        ("says_nothing", "nothing", "it replied None"),
        ("counts", "raised", "a reply must be a str, got int"),
        ("hangs", "slow", "no reply within 3 s"),
        ("dies", "died", "exit code 3"),
        ("leaves", "died", "exit code 0"),
        ("writes_without_end", "too_long", "a reply of more than 1000000 bytes"),
    ],
)
def test_a_program_that_fails_ends_its_rollout_and_no_other(name: str, kind: str, problem: str, logic: AutoResearchText) -> None:
    timeout_s = 3.0 if kind == "slow" else 60.0
    found = collect(logic, ProcessAgent(f"{PROGRAMS}:{name}", timeout_s=timeout_s), 2, slots=1)
    assert [(each.ended, each.kind, each.reward) for each in found] == [("agent", kind, 0.0)] * 2
    assert all(problem in each.problem for each in found)


def test_what_a_program_started_ends_with_it(logic: AutoResearchText) -> None:
    mine = f"left by the agent of {os.getpid()}".encode()

    def left() -> bool:
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                commands.append(path.read_bytes())
        return any(mine in command for command in commands)

    collect(logic, ProcessAgent(f"{PROGRAMS}:hangs", timeout_s=3.0))
    deadline = time.monotonic() + 60.0
    while left():  # what was killed is gone a little later
        assert time.monotonic() < deadline, "what the program started is still there"
        os.sched_yield()


def test_a_program_begins_anew_for_each_rollout(logic: AutoResearchText) -> None:
    found = collect(logic, ProcessAgent("tests.rollouts.programs:Remembers"), 3, slots=1)
    said = [[turn.said.text.split() for turn in each.turns] for each in found]
    assert [[asked for _, asked in each] for each in said] == [["1", "2", "3"]] * 3
    assert len({seed for each in said for seed, _ in each}) == 3


def test_a_program_that_cannot_be_loaded_is_named_before_anything_is_played(logic: AutoResearchText) -> None:
    from wmrl_gym.rollouts import AgentFailed

    with pytest.raises(AgentFailed, match=r"programs\.py has no missing"):
        collect(logic, ProcessAgent(f"{PROGRAMS}:missing"))
    with pytest.raises(ValueError, match=r"there is no file nowhere\.py"):
        ProcessAgent("nowhere.py:act")


def test_an_agent_that_fails_has_what_it_had_reached(logic: AutoResearchText) -> None:
    failed, whole = (collect(logic, ProcessAgent(f"{PROGRAMS}:{name}"))[0] for name in ("submits_once_and_raises", "submits"))
    assert (failed.ended, whole.ended) == ("agent", "finished")
    assert failed.reward == whole.reward > 0
    assert failed.standing == whole.standing
    assert whole.standing["test_score"] > 0
    assert [turn.executed for turn in whole.turns] == [True] * 3
    assert "test_score" not in whole.turns[0].info
    assert whole.turns[-1].info["test_score"] == whole.standing["test_score"]


def test_a_rollout_that_takes_too_long_is_ended_and_the_next_one_played(logic: AutoResearchText) -> None:
    def waits(observation: Any) -> str:
        threading.Event().wait(1000 if observation["turn"] else 0)
        return programs.SUBMIT

    slow = CallableAgent(lambda start: waits if start.seed == 0 else programs.submits)
    first, second = collect(logic, slow, 2, slots=2, timeout_s=15.0)
    assert (first.ended, first.problem) == ("timeout", "not over within 15 s")
    assert first.reward == second.reward
    assert second.ended == "finished"


def test_one_group_can_be_cancelled(logic: AutoResearchText) -> None:
    waiting = threading.Event()

    def act(start: Any) -> Callable[[Any], str]:
        def reply(observation: Any) -> str:
            if start.group == 0:
                waiting.set()
                threading.Event().wait(1000)
            return "DESCRIBE"

        return reply

    rollouts = Rollouts(logic, CallableAgent(act), slots=4)
    found = []
    for rollout in rollouts.collect(groups(["small"], [0, 1], size=2)):
        found.append(rollout)
        assert waiting.wait(60)
        rollouts.cancel(lambda start: start.group == 0)
    assert sorted((each.start.group, each.ended) for each in found) == [(0, "cancelled")] * 2 + [(1, "finished")] * 2


def test_to_leave_the_loop_early_cancels_the_rest(logic: AutoResearchText) -> None:
    played: list[int] = []
    agent = CallableAgent(lambda start: lambda observation: played.append(start.seed) or "DESCRIBE")
    for _ in Rollouts(logic, agent, slots=1).collect(groups(["small"], range(1000))):
        break
    assert len(set(played)) < 1000


def test_members_of_a_group_share_their_start_and_not_their_chance() -> None:
    first, second, other = groups(["a"], [5, 6], size=2)[:3]
    assert (first.group, first.seed) == (second.group, second.seed) != (other.group, other.seed)
    assert len({each.chance() for each in (first, second, other)}) == 3
    assert first.chance() == groups(["a"], [5])[0].chance()


def test_executions_never_pass_their_bound(logic: AutoResearchText) -> None:
    budget = Budget(executions=7)
    found = collect(logic, CallableAgent(lambda start: programs.submits), 4, slots=4, budget=budget)
    assert sorted(each.ended for each in found) == ["capped", "capped", "finished", "finished"]
    assert budget.spent["executions"] == 6
    assert "the bound on executions allows no more" in {each.problem for each in found}


def test_tokens_never_pass_their_bound_and_what_is_not_counted_counts_in_full(logic: AutoResearchText) -> None:
    with serving(counted("DESCRIBE", 500, 100)) as server:
        budget = Budget(tokens=6000)
        found = collect(logic, ChatAgent(client(server.url)), 8, slots=8, budget=budget)
        assert {each.ended for each in found} == {"finished", "capped"}
        assert 600 <= budget.spent["tokens"] <= 6000
        assert budget.spent["tokens"] == 600 * len(server.requests)
        server.answer = html
        unknown = Budget(tokens=6000)
        collect(logic, ChatAgent(client(server.url)), budget=unknown)
        assert unknown.spent["tokens"] > 600


def test_seconds_are_bounded(logic: AutoResearchText) -> None:
    budget = Budget(seconds=8.0, spent_seconds=4.0)
    agent = CallableAgent(lambda start: lambda observation: time.sleep(1000))
    first, second = collect(logic, agent, 2, slots=1, budget=budget)
    assert [first.ended, second.ended] == ["capped", "capped"]
    assert budget.refused == {"seconds"}


def test_tokens_cannot_be_bounded_where_nobody_counts_them(logic: AutoResearchText) -> None:
    with pytest.raises(TypeError, match="CallableAgent does not count tokens"):
        Rollouts(logic, CallableAgent(lambda start: programs.submits), budget=Budget(tokens=10))


class Gone:
    """A sandbox that loses every run."""

    def run(self, code: str, *, data_dir: Path | None, limits: Limits) -> ExecutionResult:
        return ExecutionResult.lost("the machine is gone")

    def close(self) -> None:
        """Nothing is open."""


def test_what_the_sandbox_loses_is_unknown(small_task: Path) -> None:
    (found,) = collect(AutoResearchText(small_task, sandbox=Gone()), CallableAgent(lambda start: programs.submits))
    assert (found.ended, found.reward) == ("lost", None)
    assert "the machine is gone" in found.problem
