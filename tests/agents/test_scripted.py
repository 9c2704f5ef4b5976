"""The scripted proposer: what it writes is Python, runs as an agent's scripts do, and gets better by feedback."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from wmrl_gym.agents import Agent, Brief, ScriptedProposer
from wmrl_gym.agents.brief import Report
from wmrl_gym.agents.faults import FAULTS
from wmrl_gym.agents.plans import CHOICES, Plan
from wmrl_gym.agents.writing import write
from wmrl_gym.envs.autoresearch import AutoResearchEnv, load_task
from wmrl_gym.envs.autoresearch.feedback import MALFORMED_FEEDBACK
from wmrl_gym.envs.autoresearch.rules import STATUSES, VALID
from wmrl_gym.envs.autoresearch.text_env import statement
from wmrl_gym.sandbox import Limits, Sandbox, make_sandbox

BRIEFS = {
    "number": Brief("fare", "mae", "id", ("fare",)),
    "label": Brief("kind", "accuracy", "id", ("kind",)),
    "probability": Brief("ill", "auc", "id", ("ill",)),
    "probabilities": Brief("section", "log-loss", "id", ("prob_a", "prob_b", "prob_c")),
}
LIMITS = Limits(wall_s=60.0, cpu_s=2.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = make_sandbox("local")
    yield made
    made.close()


def play(agent: Agent, env: AutoResearchEnv, seed: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """One episode: each reply, what came back, and its info."""
    observation, _ = env.reset(seed=seed)
    turns, over = [], False
    while not over:
        reply = agent.act(observation)
        observation, _, over, truncated, info = env.step(reply)
        assert not truncated, observation["feedback"]
        turns.append((reply, observation, info))
    return turns


def code_of(reply: str) -> str:
    return reply.split("```python\n")[-1].removesuffix("```") if "```python" in reply else ""


@pytest.mark.parametrize("kind", BRIEFS)
def test_every_plan_is_written_as_python_that_names_target_and_submission(kind: str) -> None:
    brief = BRIEFS[kind]
    assert brief.kind == kind
    rng = np.random.default_rng(0)
    seen: dict[str, set[Any]] = {name: set() for name in CHOICES}
    for number in range(400):
        plan = Plan.drawn(rng, text=number % 2 == 0)
        code = write(plan, brief)
        ast.parse(code)
        assert f'"{brief.target}"' in code
        assert 'os.environ["SUBMISSION_PATH"]' in code
        for name in CHOICES:
            seen[name].add(getattr(plan, name))
    assert seen == {name: set(choices) for name, choices in CHOICES.items()}


@pytest.mark.parametrize("name", FAULTS)
def test_every_mistake_changes_most_scripts_and_only_the_unclosed_bracket_is_no_python(name: str) -> None:
    rng = np.random.default_rng(0)
    changed, parsed = 0, 0
    for number in range(80):
        brief = list(BRIEFS.values())[number % 4]
        code = write(Plan.drawn(rng, text=False), brief)
        wrong = FAULTS[name][0](code, brief, rng)
        changed += wrong != code
        try:
            ast.parse(wrong)
            parsed += 1
        except SyntaxError:
            pass
    assert changed > 60
    assert parsed == 0 if name == "unclosed" else parsed == 80


def test_a_seed_gives_the_same_episodes_and_another_one_others() -> None:
    first = {"task": statement(load_task("happiness"), 30.0), "feedback": "", "turn": 0}
    failed = first | {"feedback": "status: runtime_error\nexit code: 1\nstderr:\nValueError: Input X contains NaN.", "turn": 1}

    def episodes(seed: int) -> list[str]:
        agent = ScriptedProposer(seed=seed)
        return [agent.act(observation) for _ in range(5) for observation in (first, failed)]

    assert episodes(3) == episodes(3)
    assert episodes(3) != episodes(4)
    assert len(set(episodes(3))) > 5


def test_the_statement_and_the_description_of_a_real_task_are_understood() -> None:
    task = load_task("bbc-news")
    brief = Brief.of(statement(task, 30.0)).described(task.description)
    assert brief.target == "section"
    assert brief.predictions == task.spec.prediction_columns
    assert brief.columns == ("id", "text", "section")
    assert brief.kind == "probabilities"
    with pytest.raises(ValueError, match="expected a statement"):
        Brief.of("Do something.")


def test_an_error_about_empty_cells_is_mended_by_filling_them() -> None:
    rng = np.random.default_rng(0)
    plan = Plan("dummies", "none", False, "linear", 1, 1, "none", "sample", 0)
    assert plan.mended(rng, "runtime_error", "ValueError: Input X contains NaN.", text=False).fill in ("median", "zero")
    words = "ValueError: could not convert string to float: 'a'"
    assert plan.mended(rng, "runtime_error", words, text=False).columns in ("dummies", "transformer", "words")
    assert plan.mended(rng, "timeout", "", text=False).size == 0


def test_reports_are_read_as_the_environment_writes_them() -> None:
    assert Report.of(MALFORMED_FEEDBACK).status == "malformed"
    text = "status: runtime_error\nexit code: 1\nstderr:\nTraceback (most recent call last):\nNameError: name 'x' is not defined"
    assert Report.of(text) == Report("runtime_error", None, "NameError: name 'x' is not defined")


def test_a_skill_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(ValueError, match=r"skill must lie in \[0, 1\], got 1.5"):
        ScriptedProposer(skill=1.5)


@pytest.mark.parametrize("task", ["diabetes", "penguin-sex"])
def test_scripts_really_run_some_well_and_some_not_and_skill_helps(task: str, sandbox: Sandbox) -> None:
    env = AutoResearchEnv(task, sandbox=sandbox, limits=LIMITS, max_turns=3)
    statuses = {skill: Counter[str]() for skill in (0.0, 1.0)}
    for skill, counts in statuses.items():
        agent = ScriptedProposer(seed=7, skill=skill)
        for episode in range(3):
            counts.update(STATUSES[int(info["status"])] for _, _, info in play(agent, env, episode))
    assert statuses[1.0]["valid"] >= 5
    assert statuses[1.0]["valid"] > statuses[0.0]["valid"]
    assert sum(statuses[0.0][name] for name in ("runtime_error", "no_submission", "timeout", "syntax_error", "malformed")) >= 3


def test_after_a_score_it_goes_on_from_its_best_plan(sandbox: Sandbox) -> None:
    env = AutoResearchEnv("diabetes", sandbox=sandbox, limits=LIMITS, max_turns=4)
    agent = ScriptedProposer(seed=2, skill=1.0)
    turns = play(agent, env, 0)
    scored = [number for number, (_, _, info) in enumerate(turns) if info["status"] == VALID]
    assert len(scored) >= 2
    assert agent._best is not None
    assert len({code_of(turns[number][0]) for number in scored}) > 1
