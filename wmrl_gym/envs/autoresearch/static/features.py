"""What can be read off a script without running it: features of its syntax tree, for a model that predicts its outcome."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.static.checks import (
    bad_values,
    failing_imports,
    unbound_names,
    unknown_columns,
    unknown_files,
    unknown_keywords,
)
from wmrl_gym.envs.autoresearch.static.facts import Facts
from wmrl_gym.envs.autoresearch.static.scripts import Recent, ScriptUnreadable, read_script

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
_LONGEST = 100
"""Characters of a name that are looked at, which are remembered."""
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
    key = (code, columns, data_columns)
    features = _KNOWN.get(key)
    if features is None:
        features = np.zeros(len(STATIC_FEATURES), dtype=np.float32)
        features.flags.writeable = False
        try:
            facts = read_script(code).facts if code.strip() else None
        except ScriptUnreadable:
            return features  # nothing is known, and that is not to be remembered
        if facts is not None:
            features = _of(code, facts, columns=columns, data_columns=data_columns)
        _KNOWN.keep(key, features, 4 * len(code) + features.nbytes + 500)
    return features


_KNOWN = Recent[NDArray[np.float32]](48 << 20)


def _of(code: str, facts: Facts, *, columns: tuple[str, ...], data_columns: frozenset[str]) -> NDArray[np.float32]:
    features = np.zeros(len(STATIC_FEATURES), dtype=np.float32)
    numbers = [*_checks(code, facts, columns, data_columns), *_sizes(code, facts)]
    features[: len(numbers)] = numbers
    features[len(numbers) + np.array(sorted(_vocabulary(facts)), np.int64)] = 1.0
    features.flags.writeable = False
    return features


def _checks(code: str, facts: Facts, columns: tuple[str, ...], data_columns: frozenset[str]) -> list[float]:
    texts = facts.texts
    stems = {column.split("_")[0] for column in columns}
    found: tuple[Collection[Any], ...] = (
        unbound_names(facts),
        unknown_keywords(facts),
        failing_imports(facts),
        bad_values(facts),
        unknown_files(facts),
        unknown_columns(facts, data_columns | frozenset(columns) if data_columns else data_columns),
    )
    has_columns = all(any(stem in text for text in texts) for stem in stems)
    return [
        1.0,
        *(float(min(len(faults), 5)) for faults in found),
        float("DATA_DIR" in code),
        float("SUBMISSION_PATH" in code),
        float(has_columns or any("sample_submission" in text for text in texts)),
    ]


def _sizes(code: str, facts: Facts) -> list[float]:
    return [
        float(np.log1p(code.count("\n"))),
        float(np.log1p(facts.nodes)),
        float(facts.loops),
        float(facts.functions),
        float(facts.tries),
        float(np.log1p(float(facts.calls))),
        float(np.log1p(facts.largest)),
    ]


def _vocabulary(facts: Facts) -> set[int]:
    """Which modules, families and pieces occur, by their places among these."""
    places = {_PLACE_OF_MODULE[module] for module in _top(facts.imports) if module in _PLACE_OF_MODULE}
    return places.union(*[_places_of_name(name[:_LONGEST]) for name in facts.names])


def _top(modules: Collection[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


@functools.lru_cache(maxsize=16_384)
def _places_of_name(name: str) -> tuple[int, ...]:
    """The families and the pieces that a name stands for."""
    families = [place for place, stems in enumerate(FAMILIES.values(), len(_MODULES)) if name.startswith(stems)]
    return (*families, *([_PLACE_OF_PIECE[name]] if name in _PLACE_OF_PIECE else []))


_PLACE_OF_MODULE = {module: place for place, module in enumerate(_MODULES)}
_PLACE_OF_PIECE = {piece: place for place, piece in enumerate(PIECES, len(_MODULES) + len(FAMILIES))}
