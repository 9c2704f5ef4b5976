"""Which score an agent sees, and which one pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.autoresearch.small_tasks import IDS, truth_of, write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchEnv, AutoResearchText
from wmrl_gym.envs.autoresearch.embedded.recipes import RECIPES
from wmrl_gym.envs.autoresearch.rules import SHOWN_STEPS, ladder_value, percentile_of, shown_value
from wmrl_gym.envs.autoresearch.tasks.scores import Leaderboard
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers import WorldModelWrapper


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_small_task(tmp_path / "small", metric="accuracy", kind="binary", larger_is_better=True)


def script(*, right_in: str) -> str:
    """Code whose answers are right on one part and wrong on the other; even rows are validation."""
    wrong = {"no": "yes", "yes": "no"}
    rows = [
        (name, label if (number % 2 == 0) == (right_in == "validation") else wrong[label])
        for number, (name, label) in enumerate(zip(IDS, truth_of("binary"), strict=True))
    ]
    text = "id,y\n" + "".join(f"{name},{label}\n" for name, label in rows)
    return f"```python\nimport os\nopen(os.environ['SUBMISSION_PATH'], 'w').write({text!r})\n```"


@pytest.mark.parametrize(
    ("feedback", "right_in", "line", "shown", "paid"),
    [
        ("validation", "validation", "validation accuracy: about 0.8000 (larger is better), beats 100%", 1.0, 0.5),
        ("validation", "test", "validation accuracy: about 0.2000 (larger is better), beats 0%", 0.5, 1.0),
        ("test", "test", "test accuracy: about 0.8000", 1.0, 1.0),
        ("test", "validation", "test accuracy: about 0.2000", 0.5, 0.5),
        ("none", "test", None, 0.0, 1.0),
    ],
)
def test_the_feedback_is_of_one_part_and_the_reward_of_the_other(
    task: Path, sandbox: Sandbox, feedback: Any, right_in: str, line: str | None, shown: float, paid: float
) -> None:
    env = AutoResearchEnv(task=task, max_turns=1, feedback=feedback, sandbox=sandbox)
    env.reset(seed=0)
    observation, reward, *_ = env.step(script(right_in=right_in))
    assert (line is None) == ("accuracy" not in observation["feedback"])
    assert line is None or line in observation["feedback"]
    assert observation["best"] == pytest.approx(shown)
    assert reward == paid
    assert env.last_cost["peak_memory_mb"] > 0


@pytest.mark.parametrize("feedback", ["validation", "none", "test"])
@pytest.mark.parametrize("kind", [AutoResearchText, AutoResearchDesign])
def test_predictions_show_what_executions_would(task: Path, kind: type[Any], feedback: Any) -> None:
    logic = kind(task, feedback=feedback)
    attempt = logic.attempt(
        logic.begin(*logic.start(np.arange(1))), ["```python\npass\n```"] if kind is AutoResearchText else np.zeros((1, 9), int)
    )
    nothing = np.zeros(1)
    outcome = Outcome(np.array([5]), np.array([0.8]), np.array([0.8]), np.array([""], object), np.ones(1, bool), nothing, nothing)
    described = logic.describe(attempt, outcome)
    assert (f"{feedback} accuracy" in described.feedback[0]) == (feedback != "none")
    assert ("accuracy" in described.feedback[0]) == (feedback != "none")
    state, _ = logic.advance(logic.begin(*logic.start(np.arange(1))), attempt, described)
    assert state.best_shown[0] == (0.0 if feedback == "none" else 0.8)
    assert state.best[0] == 0.8


def test_imagined_episodes_without_feedback_show_no_score(task: Path, sandbox: Sandbox) -> None:
    env = AutoResearchEnv(task=task, feedback="none", max_turns=2, sandbox=sandbox)
    wrapped = WorldModelWrapper(env, OutcomeModel(min_executions=2), anchors=0.5, update_every=2)
    imagined = 0
    for seed in range(8):
        _, info = wrapped.reset(seed=seed)
        imagined += not info["anchor"]
        for _ in range(2):
            observation, *_ = wrapped.step(script(right_in="test"))
            assert "accuracy" not in observation["feedback"]
            assert observation["best"] == 0.0
    wrapped.close()
    assert imagined > 0


def test_a_mode_that_does_not_exist_names_those_that_do(task: Path) -> None:
    with pytest.raises(ValueError, match=r"one of 'validation', 'none', 'test', got 'tests'"):
        AutoResearchText(task, feedback="tests")  # type: ignore[arg-type]


def test_an_end_at_a_score_that_is_not_shown_is_refused(task: Path) -> None:
    with pytest.raises(ValueError, match=r"terminate_on=0\.9 ends at a score that is shown"):
        AutoResearchText(task, feedback="none", terminate_on=0.9)


def powers_of_two(labels: np.ndarray, turn: int, *, each: int) -> np.ndarray:
    """Probabilities whose log loss spells out the labels of one group, each worth twice the one before."""
    odds = np.zeros(len(labels))
    group = np.arange(turn * each, min((turn + 1) * each, len(labels)))
    odds[group] = np.log(2.0) * 0.1 * 2.0 ** np.arange(len(group))
    return 1 / (1 + np.exp(-odds))


def told(scores: list[float], count: int, *, each: int) -> list[int]:
    """The labels that the scores of these submissions tell, -1 where they do not."""
    labels = [-1] * count
    for turn, score in enumerate(scores):
        p = powers_of_two(np.zeros(count), turn, each=each)
        size = len(range(turn * each, min((turn + 1) * each, count)))
        if size <= 0:
            break
        rest = (score * count + np.log(p).sum()) / (np.log(2.0) * 0.1)  # the sum of the powers whose label is 0
        bits = round(rest)
        if 0 <= bits < 2**size:
            labels[turn * each : turn * each + size] = [1 - (bits >> i & 1) for i in range(size)]
    return labels


def test_seventeen_turns_told_every_validation_label_and_tell_none_in_steps() -> None:
    """Of as many rows as the smallest embedded validation part has."""
    truth = np.random.default_rng(0).integers(0, 2, 76)
    board = Leaderboard.of(np.linspace(0.3, 0.9, 100), larger_is_better=False)
    exact, shown = [], []
    for turn in range(17):
        p = powers_of_two(truth, turn, each=5)
        score = float(-np.log(np.where(truth == 1, p, 1 - p)).mean())
        exact.append(round(score, 4))
        value = shown_value(ladder_value(board.percentile(score)))
        shown.append(board.score_at(percentile_of(float(value))))
    assert told(exact, 76, each=5) == truth.tolist()
    guessed = np.array(told(shown, 76, each=5))
    assert len(set(shown)) <= SHOWN_STEPS + 1
    assert (guessed == truth).mean() < 0.6  # a coin's share


def test_bits_that_seventeen_turns_tell_are_fewer_than_any_validation_part_has_rows() -> None:
    smallest = min(recipe.test_rows // 2 for recipe in RECIPES.values())
    assert 17 * np.log2(SHOWN_STEPS + 1) < smallest
