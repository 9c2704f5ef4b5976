"""Static features: what they see in a script without running it."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wmrl_gym.envs.autoresearch.static_checks import bad_values, failing_imports, unbound_names, unknown_columns, unknown_keywords
from wmrl_gym.envs.autoresearch.static_features import STATIC_FEATURES, static_features

GOOD = """\
import os
import pandas as pd
from sklearn.linear_model import Ridge

train = pd.read_csv(os.path.join(os.environ["DATA_DIR"], "train.csv"))
model = Ridge(alpha=2.0).fit(train[["x"]], train["price"])
pd.DataFrame({"id": [1], "price": [2.0]}).to_csv(os.environ["SUBMISSION_PATH"])
"""


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
    assert unbound_names(ast.walk(ast.parse(code))) == names


def test_keywords_are_checked_against_the_installed_signature() -> None:
    code = "from sklearn.svm import SVC as Machine\nMachine(C=1, gama=2)\nfrom sklearn.nowhere import X\nX(a=1)\nf(b=2)"
    assert unknown_keywords(ast.walk(ast.parse(code))) == {("Machine", "gama")}


def test_values_that_the_installed_class_refuses_are_seen_also_behind_a_star() -> None:
    code = (
        "from sklearn.ensemble import *\nRandomForestClassifier(n_estimators=0, max_depth=None, criterion='gini', bootstrap=True)"
    )
    assert bad_values(ast.walk(ast.parse(code))) == {("RandomForestClassifier", "n_estimators")}
    assert bad_values(ast.walk(ast.parse("from sklearn.pipeline import make_pipeline\nmake_pipeline(memory=3)"))) == set()


def test_nothing_private_is_imported_for_a_scripts_sake() -> None:
    code = "from sklearn._loss import HalfSquaredError\nfrom sklearn.tests.test_common import x\nfrom sklearn import svm, nowhere"
    assert failing_imports(ast.walk(ast.parse(code))) == {"sklearn._loss", "sklearn.tests.test_common", "sklearn.nowhere"}


def test_columns_that_a_script_makes_are_its_own() -> None:
    known = frozenset({"x", "y"})
    code = "train['z'] = train['x'] * 2\nframe = DataFrame({'w': 1}).assign(v=2)\ntrain['z'], frame['w'], frame['v'], frame['u']"
    assert unknown_columns(ast.walk(ast.parse(code)), known) == {"u"}
    assert unknown_columns(ast.walk(ast.parse(code)), frozenset()) == set()


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
