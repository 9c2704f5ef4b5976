"""AutoResearch's options: one list, which constructors, signatures and the documentation follow."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchDesignEnv, AutoResearchEnv, AutoResearchText
from wmrl_gym.envs.autoresearch.options import Options
from wmrl_gym.envs.autoresearch.rules import LADDER, STATUS_VALUES, STATUSES, VALID_VALUES, ladder_value, percentile_of
from wmrl_gym.envs.autoresearch.tasks.format import LIMITS
from wmrl_gym.sandbox import Limits

DOCS = (Path(__file__).parents[2] / "docs/tasks.md").read_text(encoding="utf-8")
CLASSES = {AutoResearchText: 4, AutoResearchEnv: 4, AutoResearchDesign: 3, AutoResearchDesignEnv: 3}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_small_task(tmp_path / "small", metric="mae", kind="regression", larger_is_better=False)


@pytest.mark.parametrize("made", CLASSES)
def test_a_constructor_shows_every_option_by_name(made: type) -> None:
    shown = inspect.signature(made).parameters
    assert next(iter(shown)) == "task"
    for option in fields(Options):
        expected = CLASSES[made] if option.name == "max_turns" else option.default
        assert shown[option.name].default == expected
        assert shown[option.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(each.kind is each.VAR_KEYWORD for each in shown.values())


@pytest.mark.parametrize("made", CLASSES)
def test_every_option_is_taken_and_no_other(made: type, task: Path) -> None:
    given = {
        "max_turns": 2,
        "reward": "best_test",
        "terminate_on": 0.9,
        "feedback": "test",
        "workers": 3,
        "limits": Limits(wall_s=2),
    }
    env = made(task, **given)
    options = getattr(env, "factored", env).options
    assert {name: getattr(options, name) for name in given} == given
    with pytest.raises(TypeError, match=r"'max_turn' is no option, did you mean 'max_turns'\? Options are max_turns, reward"):
        made(task, max_turn=2)


def test_the_documentation_lists_the_options_and_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", DOCS, re.MULTILINE))
    for option in fields(Options):
        default = "4, in designs 3" if option.default is MISSING else f"`{option.default!r}`".replace("'", '"')
        assert rows[option.name] == default


def test_the_documentation_has_the_ladder_s_values() -> None:
    section = DOCS[DOCS.index("## The ladder") :]
    for value in {*(each for each in LADDER.values() if each == each), *VALID_VALUES}:
        assert f"{value:.1f}" in section
    assert tuple(LADDER) == STATUSES
    assert STATUS_VALUES[: len(LADDER) - 2] == tuple(LADDER.values())[:-2]
    assert percentile_of(float(ladder_value(0.3))) == pytest.approx(0.3)


def test_a_task_may_bound_whatever_a_run_may_be_bounded_by() -> None:
    assert tuple(option.name for option in fields(Limits)) == LIMITS


@pytest.mark.parametrize("made", [AutoResearchEnv, AutoResearchDesignEnv])
def test_a_fresh_environment_can_be_copied_and_pickled(made: type, task: Path) -> None:
    env = made(task, render_mode="ansi")
    for other in (copy.deepcopy(env), pickle.loads(pickle.dumps(env))):
        first, again = env.reset(seed=3), other.reset(seed=3)
        assert first[1] == again[1]
        other.close()
    env.close()
