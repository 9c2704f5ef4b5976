"""Static features: what they see in a script without running it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.outcome_scripts import scripts
from tests.autoresearch.plain_features import compiles, plain_features
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.envs.autoresearch.reply import syntax_error
from wmrl_gym.envs.autoresearch.static.checks import bad_values, failing_imports, unbound_names, unknown_columns, unknown_keywords
from wmrl_gym.envs.autoresearch.static.facts import Facts
from wmrl_gym.envs.autoresearch.static.features import STATIC_FEATURES, static_features
from wmrl_gym.envs.autoresearch.static.scripts import read_script
from wmrl_gym.study.config import STUDY_TASKS

GOOD = """\
import os
import pandas as pd
from sklearn.linear_model import Ridge

train = pd.read_csv(os.path.join(os.environ["DATA_DIR"], "train.csv"))
model = Ridge(alpha=2.0).fit(train[["x"]], train["price"])
pd.DataFrame({"id": [1], "price": [2.0]}).to_csv(os.environ["SUBMISSION_PATH"])
"""


def facts_of(code: str) -> Facts:
    """What is read off a script that compiles."""
    facts = read_script(code).facts
    assert facts is not None
    return facts


def feature(code: str, name: str, columns: tuple[str, ...] = ("price",)) -> float:
    return float(static_features(code, columns, data_columns=frozenset({"id", "x"}))[STATIC_FEATURES.index(name)])


def test_a_good_script_is_seen_as_one() -> None:
    seen = {name: feature(GOOD, name) for name in STATIC_FEATURES}
    assert seen["parses"] == seen["reads_data"] == seen["writes_submission"] == seen["has_prediction_column"] == 1
    assert seen["imports_sklearn"] == seen["imports_pandas"] == seen["uses_linear"] == seen["has_to_csv"] == 1
    assert seen["bad_values"] == seen["unknown_files"] == seen["unknown_columns"] == 0
    assert seen["unbound_names"] == seen["unknown_keywords"] == seen["missing_modules"] == seen["uses_forest"] == 0


@pytest.mark.parametrize(
    ("old", "new", "name", "value"),
    [
        ("import os\n", "", "unbound_names", 1),
        ("Ridge(alpha", "Ridge(alfa", "unknown_keywords", 1),
        ("import os\n", "import os, nothing_of_that_name\n", "missing_modules", 1),
        ('"price": [', '"cost": [', "has_prediction_column", 1),
        ("linear_model import Ridge", "linear_model import Rigde as Ridge", "missing_modules", 1),
        ("sklearn.linear_model", "sklearn.linear_models", "missing_modules", 1),
        ("alpha=2.0", "alpha=-2.0", "bad_values", 1),
        ("alpha=2.0", 'alpha="two"', "bad_values", 1),
        ("train.csv", "training.csv", "unknown_files", 1),
        ('[["x"]]', '[["x", "y"]]', "unknown_columns", 1),
        ("SUBMISSION_PATH", "OUTPUT", "writes_submission", 0),
        ("= Ridge", "= = Ridge", "parses", 0),
    ],
)
def test_each_fault_moves_its_feature(old: str, new: str, name: str, value: float) -> None:
    assert feature(GOOD.replace(old, new), name) == value


def test_columns_that_are_not_written_are_noticed() -> None:
    assert feature(GOOD.replace("price", "cost"), "has_prediction_column") == 0


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(a, *b, c=1, **d):\n    return a, b, c, d, e", {"e"}),
        ("for i in range(3):\n    print(i, j)", {"j"}),
        ("with open('x') as file:\n    file.read()", set()),
        ("try:\n    pass\nexcept ValueError as error:\n    print(error)", set()),
        ("[x for x in y]", {"y"}),
        ("import a.b\na.b.c", set()),
        ("from math import *\nsin(1)", set()),
        ("from sklearn.ensemble import *\nRandomForestRegressor(), RandomForrest()", {"RandomForrest"}),
        ("class A:\n    pass\nA()", set()),
        ("if (n := 3) > 2:\n    print(n)", set()),
        ("match x:\n    case [a, *b]:\n        a, b\n    case {'k': c, **d}:\n        c, d", {"x"}),
    ],
)
def test_names_that_are_used_but_never_bound(code: str, names: set[str]) -> None:
    assert unbound_names(facts_of(code)) == names


def test_keywords_are_checked_against_the_installed_signature() -> None:
    code = "from sklearn.svm import SVC as Machine\nMachine(C=1, gama=2)\nfrom sklearn.nowhere import X\nX(a=1)\nf(b=2)"
    assert unknown_keywords(facts_of(code)) == {("Machine", "gama")}


def test_values_that_the_installed_class_refuses_are_seen_also_behind_a_star() -> None:
    code = (
        "from sklearn.ensemble import *\nRandomForestClassifier(n_estimators=0, max_depth=None, criterion='gini', bootstrap=True)"
    )
    assert bad_values(facts_of(code)) == {("RandomForestClassifier", "n_estimators")}
    assert bad_values(facts_of("from sklearn.pipeline import make_pipeline\nmake_pipeline(memory=3)")) == set()


def test_nothing_private_is_imported_for_a_scripts_sake() -> None:
    code = "from sklearn._loss import HalfSquaredError\nfrom sklearn.tests.test_common import x\nfrom sklearn import svm, nowhere"
    assert failing_imports(facts_of(code)) == {"sklearn._loss", "sklearn.tests.test_common", "sklearn.nowhere"}


def test_no_script_brings_other_libraries_or_changes_scikit_learn() -> None:
    script = """
import sys
from wmrl_gym.envs.autoresearch.static.checks import failing_imports
from wmrl_gym.envs.autoresearch.static.scripts import read_script

def missing(code):
    return failing_imports(read_script(code).facts)

halving = "from sklearn.model_selection import HalvingGridSearchCV"
assert missing("from sklearn.externals.array_api_compat.torch import abs") == set()
assert missing("from sklearn.experimental import enable_halving_search_cv\\n" + halving) == set()
assert missing(halving) == {"sklearn.model_selection.HalvingGridSearchCV"}, "whatever another script has imported"
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_columns_that_a_script_makes_are_its_own() -> None:
    known = frozenset({"x", "y"})
    code = "train['z'] = train['x'] * 2\nframe = DataFrame({'w': 1}).assign(v=2)\ntrain['z'], frame['w'], frame['v'], frame['u']"
    assert unknown_columns(facts_of(code), known) == {"u"}
    assert unknown_columns(facts_of(code), frozenset()) == set()


@given(st.text(max_size=60))
def test_features_are_finite_whatever_the_code(code: str) -> None:
    features = static_features(code, ("y",))
    assert features.shape == (len(STATIC_FEATURES),)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_features_of_a_huge_number_are_finite() -> None:
    assert np.isfinite(static_features("x = 10 ** 5\ny = 1e999\nz = " + "9" * 4000, ("y",))).all()


def test_cached_features_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        static_features(GOOD, ("price",))[0] = 5


PIECES_OF_CODE = (
    "import os\n",
    "from sklearn.linear_model import Ridge\n",
    "from sklearn.svm import SVC as Ridge, SVD\n",
    "def f():\n    from sklearn.linear_model import Lasso as Ridge\n    return Ridge(alpha=-1, depth=2)\n",
    "from sklearn.ensemble import *\n",
    "from . import *\n",
    "from nowhere.at import all as z\n",
    "from .sklearn import thing\n",
    "Ridge(alpha=-2.0, solver='fast', C=True)\n",
    "RandomForestClassifier(n_estimators=0, max_depth=-0.0)\n",
    "train['a'] = train[['x', 'y', 'q']][\"z\"]\n",
    "x = {'a': 1, **y, 'b': ['x', 'id']}\n",
    "pd.read_csv('Test.csv').assign(w=1e999)\n",
    "for i in range(10):\n    pass\nelse:\n    i\n",
    "try:\n    a\nexcept ValueError as error:\n    b\nfinally:\n    c\n",
    "@property\n@staticmethod\ndef g(a, *b, c=1, **d): return lambda: (yield)\n",
    "class A(B, metaclass=C):\n    k = 3\n",
    "async def h():\n    await x\n",
    "match x:\n    case [a, *b]:\n        a\n    case {'k': c, **d}:\n        c\n",
    '"""A text\nimport nothing\nx = 1\n"""\n',
    "y = '''\ndef broken(\n'''\n",
    "z = f'{x!r:>{w}}'; del z\n",
    "w = [\n1,\n2 ** 70,\n]\n",
    '# a comment with """ in it\n',
    "\n\n",
    "    # indented comment\n",
    "if os:\n  a = 'sample_submission price'\n",
    "elif b:\n    pass\n",
    "else:\n    pass\n",
    "v = 1 + \\\n",
    "u = 2 \\\n",
    "global x\n",
    "x: int = 3\n",
    "from __future__ import annotations\n",
    "from __future__ import braces\n",
    "return 1\n",
    "break\n",
    "nonlocal n\n",
    "def s():\n    global x\n    x = 0\n",
    "\ufeffa = 1\n",
    "b = 2\r",
    "\x0cc = 3\n",
    "d = 'unclosed\n",
    "e = (\n",
    ")\n",
    " f = 1\n",
    "\tg = 1\n",
    "h = '\\d'\n",
    "\x00",
    "\ud800 = 1\n",
    "i = 1",
    "print(os.environ['SUBMISSION_PATH'], os.environ['DATA_DIR'])\n",
)
"""Statements and parts of some, whose meaning depends on their company in every way that Python knows."""


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES_OF_CODE), max_size=9))
def test_one_walk_finds_what_a_search_for_each_feature_finds(pieces: list[str]) -> None:
    code, columns, known = "".join(pieces), ("price", "prob_a"), frozenset({"id", "x", "y"})
    assert (syntax_error(code) is None) == compiles(code)
    expected = plain_features(code, columns, known | {"price", "prob_a"} if known else known)
    assert static_features(code, columns, data_columns=known).tobytes() == expected.tobytes()


def test_the_features_of_a_fixed_sample_of_scripts_are_those_of_the_plain_way() -> None:
    seen = 0
    for name in STUDY_TASKS:
        logic = AutoResearchText(name)
        columns, known = logic.tasks[0].spec.prediction_columns, logic._columns[0]
        for code in scripts(name, 12, seed=5):
            expected = plain_features(code, columns, known)
            assert static_features(code, columns, data_columns=known).tobytes() == expected.tobytes(), code
            seen += bool(expected.any())
    assert seen > 80


def test_a_syntax_error_is_told_as_of_the_whole_script() -> None:
    assert syntax_error("import os\nx = 1\ny = = 2\n") == (
        '  File "/workspace/solution.py", line 3\n    y = = 2\n        ^\nSyntaxError: invalid syntax'
    )


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("from sklearn.datasets import load_boston", {"sklearn.datasets.load_boston"}),
        ("import sklearn.nowhere, sklearn.conftest", {"sklearn.nowhere", "sklearn.conftest"}),
        (f"import {'n' * 5000}", {"n" * 5000}),
        (f"from sklearn.svm import {'n' * 5000}", {f"sklearn.svm.{'n' * 5000}"}),
        ("import __main__.nothing, wmrl_gym.nothing", set()),
    ],
)
def test_what_refuses_to_be_imported_is_missing_and_not_a_crash(code: str, missing: set[str]) -> None:
    assert failing_imports(facts_of(code)) == missing
    assert np.isfinite(static_features(f"{code}\nload_boston(a=1, C='{'x' * 5000}', b={'9' * 4000})", ("y",))).all()
