"""What can be read off a script without running it: features of its syntax tree, for a model that predicts its outcome."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.reply import syntax_error
from wmrl_gym.envs.autoresearch.static_checks import (
    bad_values,
    failing_imports,
    unbound_names,
    unknown_columns,
    unknown_files,
    unknown_keywords,
)

FAMILIES: dict[str, tuple[str, ...]] = {
    "linear": (
        "LogisticRegression",
        "Ridge",
        "Lasso",
        "ElasticNet",
        "LinearRegression",
        "RidgeClassifier",
        "SGD",
        "Huber",
        "Bayesian",
    ),
    "neighbours": ("KNeighbors",),
    "tree": ("DecisionTree",),
    "forest": ("RandomForest", "ExtraTrees"),
    "boosting": ("GradientBoosting", "AdaBoost", "XGB", "LGBM", "CatBoost"),
    "support": ("SVC", "SVR", "LinearSVC", "LinearSVR"),
    "bayes": ("GaussianNB", "MultinomialNB", "BernoulliNB", "ComplementNB"),
    "network": ("MLP", "torch", "nn"),
    "combined": ("Voting", "Stacking", "Bagging"),
    "dummy": ("Dummy",),
}
PIECES = (
    "SimpleImputer",
    "fillna",
    "dropna",
    "StandardScaler",
    "OneHotEncoder",
    "OrdinalEncoder",
    "get_dummies",
    "TargetEncoder",
    "ColumnTransformer",
    "make_column_transformer",
    "Pipeline",
    "make_pipeline",
    "TfidfVectorizer",
    "CountVectorizer",
    "PCA",
    "PolynomialFeatures",
    "GridSearchCV",
    "RandomizedSearchCV",
    "cross_val_score",
    "train_test_split",
    "predict_proba",
    "predict",
    "fit",
    "read_csv",
    "to_csv",
    "clip",
    "log1p",
    "class_weight",
)
_MODULES = ("os", "pathlib", "numpy", "pandas", "scipy", "sklearn", "torch", "xgboost", "lightgbm")
STATIC_FEATURES = (
    "parses",
    "unbound_names",
    "unknown_keywords",
    "missing_modules",
    "bad_values",
    "unknown_files",
    "unknown_columns",
    "reads_data",
    "writes_submission",
    "has_prediction_column",
    "log_lines",
    "log_nodes",
    "loops",
    "functions",
    "tries",
    "calls",
    "log_largest_number",
    *(f"imports_{module}" for module in _MODULES),
    *(f"uses_{family}" for family in FAMILIES),
    *(f"has_{piece}" for piece in PIECES),
)


def static_features(code: str, columns: tuple[str, ...], *, data_columns: frozenset[str] = frozenset()) -> NDArray[np.float32]:
    """Features of one script.

    Args:
        code: the script; "" for none.
        columns: the names that a submission's prediction columns must have.
        data_columns: the names of the columns of the task's files; none checks nothing against them.

    Returns:
        float32, shape (len(STATIC_FEATURES),), finite, not to be written to. All 0 for code that does not parse.
    """
    return _cached(code, columns, data_columns)


@functools.lru_cache(maxsize=4096)
def _cached(code: str, columns: tuple[str, ...], data_columns: frozenset[str]) -> NDArray[np.float32]:
    features = np.zeros(len(STATIC_FEATURES), dtype=np.float32)
    features.flags.writeable = False
    if not code.strip() or syntax_error(code) is not None:
        return features
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except RecursionError:
        return features
    checks = _checks(code, nodes, columns, data_columns)
    values = np.array([*checks, *_sizes(code, nodes), *_vocabulary(nodes)], dtype=np.float32)
    values.flags.writeable = False
    return values


def _checks(code: str, nodes: list[ast.AST], columns: tuple[str, ...], data_columns: frozenset[str]) -> list[float]:
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = " ".join(texts)
    stems = {column.split("_")[0] for column in columns}
    found: tuple[Collection[Any], ...] = (
        unbound_names(nodes),
        unknown_keywords(nodes),
        failing_imports(nodes),
        bad_values(nodes),
        unknown_files(nodes),
        unknown_columns(nodes, data_columns | frozenset(columns) if data_columns else data_columns),
    )
    return [
        1.0,
        *(float(min(len(faults), 5)) for faults in found),
        float("DATA_DIR" in code),
        float("SUBMISSION_PATH" in code),
        float(all(any(stem in text for text in texts) for stem in stems) or "sample_submission" in words),
    ]


def _sizes(code: str, nodes: list[ast.AST]) -> list[float]:
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    numbers = [value for value in constants if isinstance(value, (int, float)) and not isinstance(value, bool)]
    largest = max((float(min(abs(number), 1e12)) for number in numbers), default=0.0)

    def count(*kinds: type[ast.AST]) -> float:
        return float(sum(isinstance(node, kinds) for node in nodes))

    return [
        float(np.log1p(code.count("\n"))),
        float(np.log1p(len(nodes))),
        count(ast.For, ast.While),
        count(ast.FunctionDef, ast.Lambda),
        count(ast.Try),
        float(np.log1p(count(ast.Call))),
        float(np.log1p(largest)),
    ]


def _vocabulary(nodes: list[ast.AST]) -> list[float]:
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    modules = _imported(nodes)
    return [
        *(float(module in modules) for module in _MODULES),
        *(float(any(name.startswith(stems) for name in names)) for stems in FAMILIES.values()),
        *(float(piece in names) for piece in PIECES),
    ]


def _imported(nodes: Iterable[ast.AST]) -> set[str]:
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in found}
