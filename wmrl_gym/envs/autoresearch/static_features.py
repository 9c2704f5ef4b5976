"""What can be read off a script without running it: features of its syntax tree, for a model that predicts its outcome."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.reply import syntax_error

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


def static_features(code: str, columns: tuple[str, ...]) -> NDArray[np.float32]:
    """Features of one script.

    Args:
        code: the script; "" for none.
        columns: the names that a submission's prediction columns must have.

    Returns:
        float32, shape (len(STATIC_FEATURES),), finite, not to be written to. All 0 for code that does not parse.
    """
    return _cached(code, columns)


@functools.lru_cache(maxsize=4096)
def _cached(code: str, columns: tuple[str, ...]) -> NDArray[np.float32]:
    features = np.zeros(len(STATIC_FEATURES), dtype=np.float32)
    features.flags.writeable = False
    if not code.strip() or syntax_error(code) is not None:
        return features
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except RecursionError:
        return features
    values = np.array([*_checks(code, nodes, columns), *_sizes(code, nodes), *_vocabulary(nodes)], dtype=np.float32)
    values.flags.writeable = False
    return values


def _checks(code: str, nodes: list[ast.AST], columns: tuple[str, ...]) -> list[float]:
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    words = " ".join(texts)
    stems = {column.split("_")[0] for column in columns}
    return [
        1.0,
        float(min(len(unbound_names(nodes)), 5)),
        float(min(len(unknown_keywords(nodes)), 5)),
        float(any(not _importable(name) for name in _imported(nodes))),
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


@functools.lru_cache(maxsize=256)
def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def unbound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are read somewhere and bound nowhere: each one is a NameError where it is reached.

    >>> unbound_names(ast.walk(ast.parse("import numpy as np\\nx = np.zeros(n)")))
    {'n'}
    """
    read, bound = set[str](), set(dir(builtins)) | {"__name__", "__file__"}
    for node in nodes:
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif (isinstance(node, ast.ExceptHandler) and node.name) or (
            isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name
        ):
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return set() if "*" in bound else read - bound


def unknown_keywords(nodes: Iterable[ast.AST]) -> set[tuple[str, str]]:
    """Keyword arguments that the installed scikit-learn's class or function does not take, as (callable, keyword).

    >>> unknown_keywords(ast.walk(ast.parse("from sklearn.linear_model import Ridge\\nRidge(alpha=1, depth=3)")))
    {('Ridge', 'depth')}
    """
    nodes = list(nodes)
    origin = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sklearn")
        for alias in node.names
    }
    unknown = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in origin:
            allowed = _keywords(*origin[node.func.id])
            if allowed is not None:
                unknown |= {(node.func.id, k.arg) for k in node.keywords if k.arg is not None and k.arg not in allowed}
    return unknown


@functools.lru_cache(maxsize=1024)
def _keywords(module: str, name: str) -> frozenset[str] | None:
    """The keywords that a callable of scikit-learn takes; None if any will do or it is not there."""
    try:
        parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
