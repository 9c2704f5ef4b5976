"""The model that asks: what it makes of answers, of their absence, and of executed anchors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bandit import Bandit
from tests.language.asking import BAD, GOOD, answer_outcome, asking, bound, executed, reply, step
from tests.language.chat_server import Handler, completion, fails, half_a_json, html, says, serving
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchEnv, AutoResearchText
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.envs.factored_env import FactoredEnv
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits, Sandbox
from wmrl_gym.spaces import UnicodeText
from wmrl_gym.world_models import ChatClient, LLMWorldModel, WorldModelError, check_world_model
from wmrl_gym.wrappers import WorldModelWrapper
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


@pytest.mark.parametrize("design", ["holistic", "decomposed"])
def test_answers_become_rewards_doubts_and_feedback_in_the_sandboxs_form(design: Any, text: AutoResearchText) -> None:
    with serving(answer_outcome) as server:
        model = bound(asking(server), text, design=design)
        outcome, std = model.predict(
            text.attempt(text.begin(*text.start(np.arange(3))), [reply(GOOD), reply(BAD), reply("x = = 1\n")]),
            np.random.default_rng(0),
        )
    assert [STATUSES[status] for status in outcome.status] == ["valid", "runtime_error", "syntax_error"]
    assert outcome.known.all()
    assert outcome.value[0] > 0.6 > 0.3 > outcome.value[1]
    assert outcome.value[2] == std[2] == 0.0, "the gate is sure"
    assert (std[:2] > 0.05).all()
    assert outcome.feedback[0].startswith("status: valid\nexit code: 0\nvalidation rmse:")
    assert outcome.feedback[1] == (
        "status: runtime_error\nexit code: 1\nstderr:\nTraceback (most recent call last):\n"
        "  File \"/workspace/solution.py\", line 2, in <module>\n    y = {}['a']\nKeyError: 'a'"
    )
    assert "SyntaxError" in outcome.feedback[2]
    checks = 1 if design == "holistic" else 4
    assert len(server.requests) == 2 * checks, "the gate's answers are not asked for"


def test_the_prompt_holds_the_task_the_statuses_and_the_code(text: AutoResearchText) -> None:
    with serving(answer_outcome) as server:
        step(bound(asking(server), text), text, [reply(GOOD)])
    system, user = server.requests[0]["messages"]
    assert system["role"] == "system"
    for expected in (
        "Predict y from x.",
        "runtime_error: the script raises",
        "no_submission",
        GOOD.strip(),
        "low < fair < mid < high",
    ):
        assert expected in user["content"]
    for gated in ("syntax_error", "malformed", "described"):
        assert gated not in user["content"]


@pytest.mark.parametrize("answer", [fails(500), html, half_a_json, says("I do not know."), says('{"status": "val')])
def test_no_readable_answer_is_unknown_and_never_a_number(answer: Any, text: AutoResearchText) -> None:
    with serving(answer) as server:
        model = bound(asking(server), text, design="holistic")
        prediction = step(model, text, [reply(GOOD), "DESCRIBE"])
    assert prediction.reward_valid.tolist() == [False, True]
    assert prediction.truncated.tolist() == [True, False]
    assert np.isfinite(prediction.reward).all()
    assert np.isnan(prediction.reward_std[0])
    assert prediction.info["predicted_status"][0] == -1
    assert model.asked.unknown == 1
    assert model.asked.unreadable + model.asked.unanswered == 1


def test_with_several_checks_one_without_answer_makes_the_attempt_unknown(text: AutoResearchText) -> None:
    def no_quality(handler: Handler, body: dict[str, Any]) -> None:
        if "quality" in body["response_format"]["json_schema"]["schema"]["properties"]:
            handler.send(completion("???"))
        else:
            answer_outcome(handler, body)

    with serving(no_quality) as server:
        model = bound(asking(server), text, design="decomposed")
        prediction = step(model, text, [reply(GOOD)])
    assert not prediction.reward_valid[0]
    assert (model.asked.answered, model.asked.unreadable, model.asked.unknown) == (3, 1, 1)


def test_samples_that_disagree_say_more_doubt_than_samples_that_agree(text: AutoResearchText) -> None:
    def torn(handler: Handler, body: dict[str, Any]) -> None:
        status = "valid" if body["seed"] % 2 or "# good" in body["messages"][-1]["content"] else "runtime_error"
        answer = {"status": status, "quality": "high", "error": "E", "line": 1, "message": "", "confidence": 0.99}
        handler.send(completion(json.dumps(answer)))

    with serving(torn) as server:
        model = bound(asking(server), text, samples=16)
        attempt = text.attempt(text.begin(*text.start(np.arange(2))), [reply(GOOD), reply(BAD)])
        outcome, std = model.predict(attempt, np.random.default_rng(0))
    assert std[1] > 2 * std[0]
    assert outcome.value[0] > outcome.value[1]
    assert len({body["seed"] for body in server.requests}) > 16


def test_the_same_question_is_asked_once_and_answered_alike(text: AutoResearchText) -> None:
    with serving(answer_outcome) as server:
        model = bound(asking(server), text)
        first = step(model, text, [reply(GOOD), reply(GOOD), reply(BAD)])
        server.answer = fails(500)
        second = step(model, text, [reply(GOOD), reply(GOOD), reply(BAD)])
    assert len(server.requests) == 2
    assert model.asked.repeated == 4
    np.testing.assert_array_equal(first.reward, second.reward)


def test_executed_anchors_become_examples(text: AutoResearchText, sandbox: Sandbox, task: Path) -> None:
    real = AutoResearchText(task, sandbox=sandbox, limits=Limits(wall_s=5.0))
    with serving(answer_outcome) as server:
        model = bound(asking(server), real, shots=2)
        model.update(
            executed(real, [reply(BAD), reply("print('done')\n"), reply("raise ValueError('no')\n")]), np.random.default_rng(0)
        )
        step(model, real, [reply(BAD + "# again\n")])
    assert model.executions == 3
    roles = [message["role"] for message in server.requests[0]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    shown = [json.loads(message["content"]) for message in server.requests[0]["messages"] if message["role"] == "assistant"]
    assert [each["status"] for each in shown] == ["no_submission", "runtime_error"], "of different statuses, the most alike last"
    assert (shown[1]["error"], shown[1]["line"], shown[1]["message"]) == ("KeyError", 2, "'a'")


def test_lost_and_gated_attempts_are_no_examples(text: AutoResearchText) -> None:
    transitions = executed(text, ["nothing", reply("x = = 1\n")])
    lost = Outcome(*(getattr(transitions.outcome, name) for name in Outcome.__dataclass_fields__))
    with serving(answer_outcome) as server:
        model = bound(asking(server), text)
        measures = model.update(transitions, np.random.default_rng(0))
        attempt = text.attempt(text.begin(*text.start(np.arange(1))), [reply(GOOD)])
        unknown = Outcome(*(getattr(lost, name)[:1] for name in Outcome.__dataclass_fields__))
        unknown.known[:] = False
        no = np.zeros(1, bool)
        model.update(
            Transitions((), (), np.zeros(1), (), no, no, no, np.zeros(1, np.int64), attempt, unknown), np.random.default_rng(0)
        )
    assert model.shown == ()
    assert measures["wm/executions"] == 0.0


def test_training_goes_on_while_the_server_is_away_and_after_it_is_back(task: Path) -> None:
    env = AutoResearchEnv(task, max_turns=1)
    with serving(answer_outcome) as server:
        port = server.server_address[1]
        wrapped = WorldModelWrapper(env, LLMWorldModel(asking(server)), anchors=0.0, seed=0)
        wrapped.reset(seed=0)
        *_, info = wrapped.step(reply(GOOD))
        assert info["reward_valid"]
    for _ in range(2):
        wrapped.reset()
        observation, reward, terminated, truncated, info = wrapped.step(reply(BAD))
        assert (reward, terminated, truncated, info["reward_valid"]) == (0.0, False, True, False)
        assert observation in wrapped.observation_space
    with serving(answer_outcome, port=port):
        wrapped.reset()
        *_, info = wrapped.step(reply(BAD))
        assert info["reward_valid"]
        assert info["wm_reward"] < 0.3
    wrapped.close()


def test_many_environments_are_predicted_by_one_batch_of_requests(task: Path) -> None:
    def together(handler: Handler, body: dict[str, Any]) -> None:
        assert handler.server.crowded.wait(30), "the crowd never came"
        answer_outcome(handler, body)

    with serving(together) as server:
        server.crowd = 24
        text = AutoResearchText(task, max_turns=1)
        envs = WorldModelVectorEnv(text, LLMWorldModel(asking(server)), num_envs=24, anchors=0.0, seed=0)
        envs.reset(seed=0)
        _, reward, terminated, _, info = envs.step([reply(GOOD + f"# {number}\n") for number in range(24)])
        envs.close()
    assert terminated.all()
    assert info["reward_valid"].all()
    assert (reward > 0.6).all()


def test_it_keeps_the_contract_of_world_models(task: Path) -> None:
    class Scripts(UnicodeText):
        """Replies with code, of which some fail."""

        def sample(self, mask: Any = None, probability: Any = None) -> str:
            return reply(f"{(GOOD, BAD)[int(self.np_random.integers(2))]}# {self.np_random.integers(100)}\n")

    with serving(answer_outcome) as server:
        env = FactoredEnv(AutoResearchText(task, limits=Limits(wall_s=5.0)))
        env.action_space = Scripts(32768)
        assert check_world_model(LLMWorldModel(asking(server)), env, sizes=(1, 7)) == []
        assert check_world_model(LLMWorldModel(asking(server), samples=3, design="decomposed"), env, sizes=(3,)) == []


def test_saved_and_loaded_it_shows_the_same_examples(
    text: AutoResearchText, sandbox: Sandbox, task: Path, tmp_path: Path
) -> None:
    real = AutoResearchText(task, sandbox=sandbox, limits=Limits(wall_s=5.0))
    with serving(answer_outcome) as server:
        model = bound(asking(server), real, shots=3, design="decomposed")
        model.update(executed(real, [reply(BAD), reply("print('done')\n")]), np.random.default_rng(0))
        before = step(model, real, [reply(GOOD)])
        model.save(tmp_path)
        loaded = bound(asking(server), real)
        loaded.load(tmp_path)
        after = step(loaded, real, [reply(GOOD)])
    assert loaded.shown == model.shown
    assert loaded.design == "decomposed"
    first, second = (sorted(json.dumps(body) for body in part) for part in (server.requests[:4], server.requests[4:]))
    assert first == second, "the same prompts, in whatever order they came"
    np.testing.assert_array_equal(before.reward, after.reward)
    with pytest.raises(WorldModelError, match=r"llm_world_model\.json is missing"):
        loaded.load(tmp_path / "elsewhere")


def test_attempts_without_text_are_refused_with_the_model_that_takes_them() -> None:
    bandit = Bandit()
    model = LLMWorldModel(ChatClient("http://127.0.0.1:9/v1", "small"))
    with pytest.raises(WorldModelError, match=r"this environment's have none: use OutcomeModel"):
        check_world_model(model, FactoredEnv(bandit), sizes=(1,))


def test_it_must_be_told_which_of_several_tasks_an_attempt_is_at() -> None:
    text = AutoResearchText(["diabetes", "digits"])
    attempt = text.attempt(text.begin(*text.start(np.arange(2))), [reply(GOOD), reply(BAD)])
    with serving(answer_outcome) as server:
        model = bound(asking(server), text)
        with pytest.raises(WorldModelError, match="needs to know which of 2 tasks"):
            model.predict(attempt, np.random.default_rng(0))
        model.predict(attempt, np.random.default_rng(0), context=np.array([1, 0]))
    briefed = {body["messages"][1]["content"].split(":")[0] for body in server.requests}
    assert briefed == {"Task diabetes", "Task digits"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "vague"}, "design must be"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"shots": -1}, "shots must be at least 0, got -1"),
        ({"buckets": {"low": 0.5, "high": 0.1}}, "buckets must be at least two shares"),
        ({"buckets": {"only": 0.5}}, "buckets must be at least two shares"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLMWorldModel(ChatClient("http://127.0.0.1:9/v1", "small"), **options)
