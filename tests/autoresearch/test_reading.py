"""One reader for both sides: ids are text, rows given are rows scored, and a competition that loads can be solved."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autoresearch.peer_layouts import SCORES
from tests.autoresearch.small_tasks import IDS, truth_of, write_csv, write_small_task
from wmrl_gym.envs.autoresearch import Task, TaskError, load_task
from wmrl_gym.envs.autoresearch.tasks import mlebench_helpers as helpers
from wmrl_gym.envs.autoresearch.tasks.grading import grade
from wmrl_gym.envs.autoresearch.tasks.reading import BadTable, Keys, find_keys, parse_rows, spelling, to_csv

WORST = """
from mlebench.utils import get_logger

logger = get_logger(__name__)


def grade(submission, answers):
    both = answers.merge(submission, on="id", suffixes=("", "_said"))
    return float((both["y"] - both["y_said"]).abs().max())
"""
ALIKE = """
def grade(submission, answers):
    both = answers.merge(submission, on={keys!r}, suffixes=("", "_said")).fillna("")
    assert len(both) == len(answers) == len(submission)
    return float((both["y"] != both["y_said"]).mean())
"""


Table = list[tuple[object, ...]]


def competition(root: Path, metric: str, guesses: Table, truth: Table, **named: str) -> Path:
    """A competition in MLE-bench's layout; ``named`` are its files that are elsewhere."""
    write_csv(root / named.get("sample", "prepared/public/sample_submission.csv"), guesses)
    place = root / named.get("answers", "prepared/private/test.csv")
    if place.suffix == ".jsonl":
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(dict(zip(map(str, truth[0]), row, strict=True))) for row in truth[1:]]
        place.write_text("\n".join(lines))
    else:
        write_csv(place, truth)
    (root / "grade.py").write_text(metric)
    (root / "description.md").write_text("# Small\n")
    write_csv(root / "leaderboard.csv", [("score",), *((score,) for score in SCORES)])
    return root


def content(header: tuple[str, ...], rows: list[tuple[object, ...]]) -> bytes:
    return to_csv(header, [tuple(map(str, row)) for row in rows]).encode()


ODD = ["00001", "00012", "NA", "1.10", "2.50", "1e5", "True", "-0", *(f"x{n}" for n in range(32))]


def test_ids_are_text_on_both_sides_and_every_row_is_scored(tmp_path: Path) -> None:
    answers = [(name, 1) for name in ODD]
    task = load_task(competition(tmp_path / "odd", WORST, [("id", "y"), *((n, 0) for n in ODD)], [("id", "y"), *answers]))
    for name in ODD[:8]:
        graded = grade(task, content(("id", "y"), [(each, 50 if each == name else 1) for each in ODD]))
        assert {graded.validation, graded.test} == {0.0, 49.0}, name


def test_ids_that_pandas_has_rewritten_are_those_that_they_were(tmp_path: Path) -> None:
    answers = [(name, place % 5) for place, name in enumerate(ODD)]
    task = load_task(competition(tmp_path / "odd", WORST, [("id", "y"), *((n, 0) for n in ODD)], [("id", "y"), *answers]))
    rewritten = {"00001": "1", "00012": "12", "NA": "", "1.10": "1.1", "2.50": "2.5", "1e5": "100000.0", "-0": "0"}
    graded = grade(task, content(("id", "y"), [(rewritten.get(str(name), name), value) for name, value in answers]))
    assert (graded.problem, graded.validation, graded.test) == (None, 0.0, 0.0)
    problem = grade(task, content(("id", "y"), [*answers[:-1], ("1", 0)])).problem
    assert problem is not None
    assert "more than once" in problem


@pytest.mark.parametrize("kind", ["last column", "two columns", "nothing", "JSON lines", "elsewhere"])
def test_the_truth_is_a_submission_of_every_sort_of_competition(kind: str, tmp_path: Path) -> None:
    names, truth = [f"im{n}" for n in range(40)], [f"{n} 3" if n % 3 else "" for n in range(40)]
    keys, header, named = ["id"], ("id", "y"), dict[str, str]()
    rows: list[tuple[object, ...]] = list(zip(names, truth, strict=True))
    if kind == "last column":
        keys, header, rows = ["id"], ("y", "when", "id"), [(value, 2012, name) for name, value in rows]
    elif kind == "two columns":
        keys, header = ["id", "side"], ("id", "side", "y")
        rows = [(name, side, value) for name, value in rows for side in ("left", "right")]
    elif kind == "elsewhere":
        named = {"sample": "prepared/private/sample_submission.csv", "answers": "prepared/private/truth/answers.csv"}
    elif kind == "JSON lines":
        named = {"answers": "prepared/private/test.jsonl"}
    metric = ALIKE.format(keys=keys)
    if kind == "JSON lines":
        metric = "import pandas as pd\n" + metric.replace("both = answers", "answers = pd.DataFrame(answers)\n    both = answers")
    place = header.index("y")
    blank = [tuple("" if i == place else cell for i, cell in enumerate(row)) for row in rows]
    root = competition(tmp_path / "made", metric, [header, *blank], [header, *rows], **named)
    files = "".join(f"  {key}: made/{path}\n" for key, path in named.items()).replace("  sample:", "  sample_submission:")
    (root / "config.yaml").write_text(f"id: made\ndataset:\n{files}grader:\n  name: agreement\n")
    (root / "prepared/public").mkdir(exist_ok=True, parents=True)
    task = load_task(root)
    assert task.spec.metric.name == "agreement"
    assert grade(task, content(header, rows)) == grade(task, content(header, rows[::-1]))
    assert (grade(task, content(header, rows)).test, grade(task, content(header, blank)).problem) == (0.0, None)


def test_long_fields_and_samples_beyond_the_usual_size_are_read(tmp_path: Path) -> None:
    rows = [(f"r{n}", f"{n} " + "x" * 180_000) for n in range(100)]
    metric = "def grade(submission, answers):\n    return float((submission['y'] != answers['y']).mean())\n"
    sample = [(name, text.replace("x", "y")) for name, text in rows]  # as long, and wrong
    task = load_task(competition(tmp_path / "large", metric, [("id", "y"), *sample], [("id", "y"), *rows]))
    before = csv.field_size_limit()
    assert grade(task, content(("id", "y"), rows)).test == 0.0
    assert csv.field_size_limit() == before
    assert task.spec.limits["file_mb"] > 64


def test_rows_are_parted_so_that_the_metric_can_score_both_halves(tmp_path: Path) -> None:
    metric = (
        "from sklearn.metrics import roc_auc_score\ndef grade(submission, answers):\n"
        "    if answers['y'].nunique() < 2:\n        raise ValueError('one class')\n"
        "    return float(roc_auc_score(answers['y'], submission['y']))\n"
    )
    for first in (0, 1, 2, 5):
        truth = [(f"r{n}", int(n in (first, first + 1))) for n in range(40)]
        root = competition(tmp_path / f"rare{first}", metric, [("id", "y"), *((n, 0.5) for n, _ in truth)], [("id", "y"), *truth])
        write_csv(root / "leaderboard.csv", [("score",), *((1 - score / 10,) for score in SCORES)])
        task = load_task(root)
        assert task.answers.test[first] != task.answers.test[first + 1]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("def grade(s, a):\n    raise KeyError('target')\n", "does not score the answers .*KeyError"),
        ("def grade(s, a):\n    return 1 / (len(a) - 20) if len(a) == 20 else 1.0 / (len(a) == 40)\n", "half by half"),
        (
            "from mlebench.utils import secrets\n",
            "imports mlebench.utils, of which only a part is stood in for",
        ),
        ("from mlebench.registry import registry\n", "imports mlebench.registry, .*: install mlebench"),
    ],
)
def test_what_could_never_be_scored_is_refused_when_it_is_loaded(metric: str, message: str, tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [(f"r{n}", n % 5) for n in range(40)]
    with pytest.raises(TaskError, match=message):
        load_task(competition(tmp_path / "bad", metric, [("id", "y"), *rows], [("id", "y"), *rows]))


def test_rows_without_names_are_refused(tmp_path: Path) -> None:
    rows: list[tuple[object, ...]] = [("same", n % 5) for n in range(40)]
    with pytest.raises(TaskError, match="no column, nor two or three together, name its rows"):
        load_task(competition(tmp_path / "bad", WORST, [("id", "y"), *rows], [("id", "y"), *rows]))


def test_a_byte_order_mark_is_no_part_of_any_file_of_a_task(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "small", metric="accuracy", kind="binary", larger_is_better=True)
    plain = Task.load(root)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    marked = Task.load(root)
    assert (marked.spec, marked.description, marked.answers.ids) == (plain.spec, plain.description, plain.answers.ids)
    np.testing.assert_array_equal(marked.leaderboard.goodness, plain.leaderboard.goodness)
    rows = list(zip(IDS, truth_of("binary"), strict=True))
    assert grade(marked, b"\xef\xbb\xbf" + content(("id", "y"), rows)).test == 1.0  # type: ignore[arg-type]


def test_own_tasks_match_rewritten_ids_too(tmp_path: Path) -> None:
    root = write_small_task(tmp_path / "small", metric="accuracy", kind="binary", larger_is_better=True)
    for path in [*root.glob("public/*.csv"), root / "private/answers.csv"]:
        path.write_text(path.read_text().replace("t", "00").replace("validaion", "validation").replace("00es00", "test"))
    text = (root / "private/answers.csv").read_text().replace("par00", "part").replace("valida00ion", "validation")
    (root / "private/answers.csv").write_text(text)
    task = Task.load(root)
    assert task.answers.ids[:2] == ("000", "001")
    assert grade(task, content(("id", "y"), [(n, label) for n, label in enumerate(truth_of("binary"))])).test == 1.0


@given(st.lists(st.text("0123456789.eE+-NAna ", max_size=6), unique_by=str.strip, min_size=1, max_size=20))
def test_every_id_finds_itself_and_its_spelling_finds_it_or_nothing(names: list[str]) -> None:
    keys = [(name.strip(),) for name in names]
    found = Keys(keys)
    assert found.order(reversed(keys)) == list(range(len(keys)))[::-1]
    for place, (name,) in enumerate(keys):
        assert found.place((spelling(name),)) in (place, None) or (spelling(name),) in keys


@given(st.binary(max_size=200))
def test_bytes_are_a_table_or_a_reason(data: bytes) -> None:
    try:
        table = parse_rows(data)
    except BadTable as error:
        table = str(error)  # type: ignore[assignment]
    if isinstance(table, str):
        assert 0 < len(table) < 300
        return
    assert all(len(row) == len(table.header) for row in table.rows)
    assert len(table.lines) == len(table.rows)


def test_the_first_columns_that_name_rows_are_taken() -> None:
    sample = parse_rows(b"y,a,b\n0,1,1\n0,1,2\n0,2,1\n")
    assert find_keys(sample, parse_rows(b"b,a,y\n1,1,5\n2,1,6\n1,2,7\n")) == ("a", "b")
    assert find_keys(sample, parse_rows(b"b,a,y\n1,1,5\n2,1,6\n1,3,7\n")) is None


def frame(**columns: list[object]) -> pd.DataFrame:
    return pd.DataFrame(columns)


def test_what_graders_share_is_there_without_their_benchmark(tmp_path: Path) -> None:
    metric = (
        "from mlebench.competitions.utils import prepare_for_auroc_metric\nfrom sklearn.metrics import roc_auc_score\n"
        "def grade(s, a):\n    return float(roc_auc_score(**prepare_for_auroc_metric(s, a, id_col='id', target_col='y')))\n"
    )
    rows: Table = [(f"r{n}", n % 2) for n in range(40)]
    root = competition(tmp_path / "shared", metric, [("id", "y"), *((n, 0.5) for n, _ in rows)], [("id", "y"), *rows])
    write_csv(root / "leaderboard.csv", [("score",), *((1 - score / 10,) for score in SCORES)])
    task = load_task(root)
    assert grade(task, content(("id", "y"), rows)).test == 1.0
    problem = grade(task, content(("id", "y"), [(name, 2 * value) for name, value in rows])).problem  # type: ignore[operator]
    assert problem is not None
    assert "which lie between 0 and 1" in problem


def test_helpers_of_graders_align_rows_and_columns() -> None:
    answers = helpers.df_to_one_hot(frame(id=["b", "a"], y=["cat", "dog"]), "id", "y", ["cat", "dog"])
    assert answers.to_numpy().tolist() == [["b", 1, 0], ["a", 0, 1]]
    said = frame(dog=[0.9, 0.2], id=["a", "b"], cat=[0.1, 0.8])
    inputs = helpers.one_hot_dfs_to_log_loss_inputs(said, answers, apply_softmax=False)
    np.testing.assert_array_equal(inputs["y_true"], [[0, 1], [1, 0]])
    np.testing.assert_array_equal(inputs["y_pred"], [[0.1, 0.9], [0.8, 0.2]])
    np.testing.assert_allclose(helpers.one_hot_dfs_to_log_loss_inputs(said, answers)["y_pred"].sum(axis=1), 1.0)
    assert helpers.is_one_hot_encoded(inputs["y_true"])
    labels = helpers.prepare_for_accuracy_metric(frame(id=["a", "b"], y=[1, 2]), frame(id=["b", "a"], y=[3, 4]), "y", "id")
    assert (labels["y_true"].tolist(), labels["y_pred"].tolist()) == ([4, 3], [1, 2])
    with pytest.raises(helpers.InvalidSubmissionError, match="other values of 'id'"):
        helpers.prepare_for_accuracy_metric(frame(id=["a", "c"], y=[1, 2]), frame(id=["b", "a"], y=[3, 4]), "y", "id")


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_runs_and_masks_are_each_other_s_inverse(pixels: list[bool]) -> None:
    mask = np.array(pixels).reshape(3, 4)
    runs = " ".join(map(str, helpers.rle_encode(mask)))
    (again,) = helpers.rles_to_masks([runs], [3], [4])
    np.testing.assert_array_equal(again, mask)


@pytest.mark.parametrize("runs", ["1", "0 2", "3 2 1 1", "1 3 2 1", "12 2", "2 0"])
def test_runs_that_are_none_are_refused(runs: str) -> None:
    with pytest.raises(helpers.InvalidSubmissionError):
        helpers.rle_decode(runs, 3, 4)
