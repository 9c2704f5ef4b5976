"""Designs are rendered to scripts that a person could have written, run as they stand, and really fail where they must."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wmrl_gym.envs.autoresearch import list_tasks, load_task, render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC, SLOTS, Design, one_hot
from wmrl_gym.envs.autoresearch.design_env import AutoResearchDesign, DesignAttempt
from wmrl_gym.envs.autoresearch.rules import STATUSES
from wmrl_gym.envs.autoresearch.static.checks import unbound_names, unknown_keywords
from wmrl_gym.envs.autoresearch.static.facts import facts_of
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits, Sandbox

DESIGNS = st.tuples(*(st.integers(0, int(count) - 1) for count in NVEC))


def design(**choices: str) -> np.ndarray:
    """A plain design with some choices made by name."""
    plain = {"imputation": "median", "scaling": "standard", "encoding": "one-hot", "features": "all", "family": "linear"}
    names = {**plain, "size": "medium", "strength": "middling", "rate": "a", "target": "plain", **choices}
    return np.array([SLOTS[slot].index(names[slot]) for slot in SLOTS], dtype=np.int64)


def execute(sandbox: Sandbox, task: str, action: np.ndarray, *, wall_s: float = 30.0) -> Outcome:
    logic = AutoResearchDesign(task, sandbox=sandbox, limits=Limits(wall_s=wall_s))
    return logic.execute(DesignAttempt(np.array([0]), action[None]))


@settings(max_examples=150)
@given(DESIGNS, st.sampled_from(list_tasks()))
def test_every_design_is_a_script_without_faults_that_can_be_seen(action: tuple[int, ...], name: str) -> None:
    code = render_design(load_task(name), np.array(action))
    nodes = list(ast.walk(ast.parse(code)))
    assert unbound_names(facts_of(ast.parse(code))) == set()
    assert unknown_keywords(facts_of(ast.parse(code))) == set()
    imported = {alias.name for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert {name.split(".")[0] for name in imported} - {"pandas", "numpy"} <= used | {"os"}
    assert code == render_design(load_task(name), list(action))


@pytest.mark.parametrize("name", list_tasks())
@pytest.mark.parametrize("family", ["linear", "random forest"])
def test_a_plain_design_works_on_every_task(name: str, family: str, sandbox: Sandbox) -> None:
    outcome = execute(sandbox, name, design(family=family, scaling="none" if name == "bbc-news" else "standard", size="small"))
    assert STATUSES[outcome.status[0]] == "valid", outcome.feedback[0]
    assert 0.5 <= outcome.value[0] <= 1
    assert 0.5 <= outcome.shown[0] <= 1


@pytest.mark.parametrize(
    ("name", "choices", "words"),
    [
        ("digits", {"family": "naive bayes", "rate": "b"}, "Negative values in data"),
        ("happiness", {"imputation": "none"}, "NaN"),
        ("breast-cancer", {"family": "linear", "rate": "c"}, "predict_proba"),
        ("bbc-news", {"family": "boosting"}, "Sparse data was passed"),
    ],
)
def test_choices_that_do_not_fit_really_fail(name: str, choices: dict[str, str], words: str, sandbox: Sandbox) -> None:
    outcome = execute(sandbox, name, design(**choices))
    assert STATUSES[outcome.status[0]] == "runtime_error"
    assert outcome.value[0] == outcome.shown[0] == 0.1
    assert words in outcome.feedback[0]


def test_a_choice_that_is_too_slow_really_runs_out_of_time(sandbox: Sandbox) -> None:
    outcome = execute(sandbox, "digits", design(family="random forest", size="huge", rate="d", features="products"), wall_s=1.0)
    assert STATUSES[outcome.status[0]] == "timeout"
    assert outcome.value[0] == 0.1
    assert "stopped at the limit of 1 s of wall-clock time" in outcome.feedback[0]


def test_the_same_design_gets_the_same_score_twice(sandbox: Sandbox) -> None:
    action = design(family="neural network", features="principal components", size="small")
    first, second = (execute(sandbox, "cars-mpg", action) for _ in range(2))
    assert first.value[0] == second.value[0]
    assert first.feedback[0] == second.feedback[0]


def test_a_design_is_graded_exactly_like_the_script_that_it_is_rendered_to(sandbox: Sandbox) -> None:
    task, action = load_task("diabetes"), design(family="extra trees", size="small")
    result = sandbox.run(render_design(task, action), data_dir=task.public, limits=Limits())
    graded = grade(task, result.submission)
    outcome = execute(sandbox, "diabetes", action)
    assert outcome.value[0] == 0.5 + 0.5 * float(task.leaderboard.percentile(graded.test))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([0] * 8, "a design is 9 whole numbers"),
        ([0.0] * 9, "a design is 9 whole numbers"),
        ([0, 0, 0, 0, 9, 0, 0, 0, 0], "below"),
        ([-1, 0, 0, 0, 0, 0, 0, 0, 0], "at least 0"),
    ],
)
def test_what_is_not_a_design_is_refused(action: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Design.of(action)  # type: ignore[arg-type]


@given(st.lists(DESIGNS, min_size=1, max_size=5))
def test_one_hot_has_one_one_in_each_slot_and_tells_designs_apart(actions: list[tuple[int, ...]]) -> None:
    hot = one_hot(np.array(actions))
    assert hot.shape == (len(actions), int(NVEC.sum()))
    np.testing.assert_array_equal(hot.sum(axis=1), len(NVEC))
    assert len({tuple(row) for row in hot.tolist()}) == len(set(actions))
