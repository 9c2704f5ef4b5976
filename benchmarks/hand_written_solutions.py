"""Solutions as a careful person would write them: the hard end of each leaderboard, mostly outside the design space."""

from __future__ import annotations

from benchmarks.language_models import language_models
from wmrl_gym.envs.autoresearch.tasks.format import Spec, Task
from wmrl_gym.envs.autoresearch.tasks.profile import profile

_WIDE = 100
"""Columns beyond which all products of two of them are too many."""

_HEAD = """\
import os
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import *
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import SimpleImputer
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import *
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import ComplementNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, SplineTransformer, StandardScaler
from sklearn.svm import SVC, SVR

data = Path(os.environ["DATA_DIR"])
train, test = pd.read_csv(data / "train.csv"), pd.read_csv(data / "test.csv")
X, y, X_test = train.drop(columns=["{id}", "{target}"]), train["{target}"], test.drop(columns="{id}")
"""

_COLUMNS = """\
numeric = X.select_dtypes("number").columns
categorical = X.columns.difference(numeric)
flat = make_column_transformer(
    (make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler()), numeric),
    (
        make_pipeline(
            SimpleImputer(strategy="constant", fill_value="missing"),
            OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5, sparse_output=False),
        ),
        categorical,
    ),
)
"""
_TEXT = """\
X, X_test = X["{text}"], X_test["{text}"]
flat = make_union(
    TfidfVectorizer(sublinear_tf=True, stop_words="english"),
    TfidfVectorizer(sublinear_tf=True, analyzer="char_wb", ngram_range=(3, 5), min_df=2),
)
"""
_LABELS = 'pd.DataFrame({{"{id}": test["{id}"], "{target}": model.predict(X_test)}})'
_BINARY = 'pd.DataFrame({{"{id}": test["{id}"], "{target}": model.predict_proba(X_test)[:, 1]}})'
_MANY = (
    'pd.DataFrame(model.predict_proba(X_test), columns=[f"prob_{{label}}" for label in model.classes_])'
    '.assign(**{{"{id}": test["{id}"]}})'
)

_REGRESSORS = {
    "ridge": "RidgeCV(np.logspace(-2, 3, 20))",
    "lasso": "LassoCV(cv=5, random_state=0)",
    "elastic net on splines": "make_pipeline(SplineTransformer(5), ElasticNetCV(cv=5, random_state=0, max_iter=3000))",
    "ridge on products": "make_pipeline(PolynomialFeatures(2), StandardScaler(), RidgeCV(np.logspace(-1, 4, 20)))",
    "support vectors, searched": 'GridSearchCV(SVR(), {"C": [1, 3, 10, 30, 100], "gamma": ["scale", 0.01, 0.03]}, cv=5)',
    "gradient boosting": (
        "GradientBoostingRegressor(n_estimators=200, max_depth=3, subsample=0.7, learning_rate=0.05, random_state=0)"
    ),
    "gradient boosting on the log": (
        "TransformedTargetRegressor(GradientBoostingRegressor(n_estimators=200, learning_rate=0.05, "
        "subsample=0.7, random_state=0), func=np.log1p, inverse_func=np.expm1)"
    ),
    "extra trees": "ExtraTreesRegressor(300, min_samples_leaf=2, max_features=0.5, random_state=0)",
    "gaussian process": (
        "GaussianProcessRegressor(ConstantKernel() * RBF(5.0) + WhiteKernel(), normalize_y=True, random_state=0)"
    ),
    "vote": (
        'VotingRegressor([("svr", SVR(C=10)), ("ridge", RidgeCV()), ("trees", ExtraTreesRegressor(200, '
        'min_samples_leaf=2, random_state=0)), ("boosting", GradientBoostingRegressor(subsample=0.7, '
        "random_state=0))])"
    ),
    "stack": (
        'StackingRegressor([("svr", SVR(C=10)), ("ridge", RidgeCV()), ("trees", ExtraTreesRegressor(200, '
        'min_samples_leaf=2, random_state=0)), ("boosting", GradientBoostingRegressor(subsample=0.7, '
        "random_state=0))])"
    ),
}
_CLASSIFIERS = {
    "logistic": "LogisticRegression(C=0.3, max_iter=2000{weight})",
    "logistic, weak penalty": "LogisticRegression(C=3.0, max_iter=2000{weight})",
    "logistic on splines": "make_pipeline(SplineTransformer(4), LogisticRegression(C=0.1, max_iter=2000{weight}))",
    "logistic on products": (
        "make_pipeline(PolynomialFeatures(2), StandardScaler(), LogisticRegression(C=0.005, max_iter=500{weight}))"
    ),
    "support vectors": "CalibratedClassifierCV(SVC(C=3.0{weight}), ensemble=False)",
    "gradient boosting": (
        "GradientBoostingClassifier(n_estimators=120, max_depth=3, subsample=0.7, learning_rate=0.05, random_state=0)"
    ),
    "random forest": "RandomForestClassifier(300, min_samples_leaf=3, random_state=0{weight})",
    "extra trees": "ExtraTreesClassifier(300, min_samples_leaf=2, random_state=0{weight})",
    "bagged networks": ("BaggingClassifier(MLPClassifier((32,), alpha=1.0, max_iter=150, random_state=0), 8, random_state=0)"),
    "vote": (
        'VotingClassifier([("line", LogisticRegression(C=0.3, max_iter=2000{weight})), ("trees", '
        'ExtraTreesClassifier(200, min_samples_leaf=2, random_state=0{weight})), ("kernel", '
        'CalibratedClassifierCV(SVC(C=3.0), ensemble=False))], voting="soft")'
    ),
    "stack": (
        'StackingClassifier([("line", LogisticRegression(C=0.3, max_iter=2000)), ("trees", '
        'ExtraTreesClassifier(200, min_samples_leaf=2, random_state=0)), ("boosting", '
        "HistGradientBoostingClassifier(max_iter=60, random_state=0))], "
        "LogisticRegression(max_iter=2000{weight}), cv=4)"
    ),
}
_READERS = {
    "logistic": "LogisticRegression(C=10.0, max_iter=1000)",
    "logistic, weak penalty": "LogisticRegression(C=100.0, max_iter=1000)",
    "naive bayes, calibrated": "CalibratedClassifierCV(ComplementNB(alpha=0.1), ensemble=False)",
    "support vectors": 'CalibratedClassifierCV(SVC(kernel="linear", C=1.0), ensemble=False)',
    "topics": ("make_pipeline(TruncatedSVD(150, random_state=0), StandardScaler(), LogisticRegression(C=0.05, max_iter=1000))"),
    "vote": (
        'VotingClassifier([("line", LogisticRegression(C=30.0, max_iter=1000)), ("bayes", '
        'CalibratedClassifierCV(ComplementNB(alpha=0.1), ensemble=False)), ("kernel", '
        'CalibratedClassifierCV(SVC(kernel="linear"), ensemble=False))], voting="soft")'
    ),
}


_CHARACTERS = tuple((low, high) for low in (1, 2) for high in (2, 3, 4, 5))
_SPELLERS = {
    "logistic, weak penalty": "LogisticRegression(C=10.0, max_iter=1000)",
    "logistic": "LogisticRegression(C=1.0, max_iter=1000)",
    "logistic, strong penalty": "LogisticRegression(C=0.1, max_iter=1000)",
    "naive bayes": "ComplementNB(alpha=0.3)",
    "naive bayes, smooth": "ComplementNB(alpha=3.0)",
    "neighbours": 'KNeighborsClassifier(15, metric="cosine")',
    "trees": "ExtraTreesClassifier(60, min_samples_leaf=2, random_state=0)",
    "topics": "make_pipeline(TruncatedSVD(10, random_state=0), LogisticRegression(max_iter=1000))",
}


def _spellings(spec: Spec) -> dict[str, str]:
    """What can be said of a word by its letters alone: groups of letters of many lengths, and many models."""
    scripts = {}
    for low, high in _CHARACTERS:
        letters = f'TfidfVectorizer(analyzer="char_wb", ngram_range=({low}, {high}))'
        for name, expression in _SPELLERS.items():
            script = _script(spec, expression)
            start, end = script.index("flat = make_union("), script.index("model = make_pipeline")
            scripts[f"{name}, {low} to {high} letters"] = f"{script[:start]}flat = {letters}\n{script[end:]}"
    return scripts


def hand_written(task: Task) -> dict[str, str]:
    """Scripts by name for one task; the first is the constant guess of ``sample_submission.csv``."""
    spec = task.spec
    weight = ', class_weight="balanced"' if spec.metric.name == "macro-f1" else ""
    menu = _REGRESSORS if spec.kind == "regression" else _READERS if spec.text_column else _CLASSIFIERS
    guess = (
        "import os, shutil\n"
        'shutil.copy(os.path.join(os.environ["DATA_DIR"], "sample_submission.csv"), os.environ["SUBMISSION_PATH"])\n'
    )
    if spec.metric.name == "bits-per-byte":
        return {"constant guess": guess, **language_models(spec)}
    if spec.name == "first-names":
        return {"constant guess": guess, **_spellings(spec)}
    wide = len(profile(task).numeric) > _WIDE
    scripts = {
        name: _script(spec, expression.replace("{weight}", weight))
        for name, expression in menu.items()
        if not (wide and "products" in name)
    }
    return {"constant guess": guess, **scripts}


def _script(spec: Spec, estimator: str) -> str:
    answer = _LABELS if spec.metric.predicts != "probability" else _BINARY if spec.kind == "binary" else _MANY
    names = {"id": spec.id_column, "target": spec.target, "text": spec.text_column}
    prepare = _TEXT.format(**names) if spec.text_column else _COLUMNS
    return (
        f"{_HEAD.format(**names)}{prepare}model = make_pipeline(flat, {estimator})\nmodel.fit(X, y)\n"
        f'{answer.format(**names)}.to_csv(os.environ["SUBMISSION_PATH"], index=False)\n'
    )
