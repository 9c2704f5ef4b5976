"""Renders a design to a Python script that a person could have written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from wmrl_gym.envs.autoresearch.design.models import model
from wmrl_gym.envs.autoresearch.design.space import VECTORISERS, Design
from wmrl_gym.envs.autoresearch.tasks.format import Spec, Task
from wmrl_gym.envs.autoresearch.tasks.profile import Profile, profile

_PLAIN = ("import os", "from pathlib import Path", "", "import pandas as pd")
_IMPUTERS = {
    "mean": ("SimpleImputer", 'SimpleImputer(strategy="mean")'),
    "median": ("SimpleImputer", 'SimpleImputer(strategy="median")'),
    "median with flags": ("SimpleImputer", 'SimpleImputer(strategy="median", add_indicator=True)'),
    "nearest neighbours": ("KNNImputer", "KNNImputer(n_neighbors=5)"),
}
_SCALERS = {
    "standard": ("StandardScaler", "StandardScaler()"),
    "minmax": ("MinMaxScaler", "MinMaxScaler()"),
    "robust": ("RobustScaler", "RobustScaler()"),
    "quantile": ("QuantileTransformer", 'QuantileTransformer(n_quantiles=100, output_distribution="normal", random_state=0)'),
}
# Documents become sparse rows, which centring would fill up.
_SPARSE_SCALERS = {
    "standard": ("StandardScaler", "StandardScaler(with_mean=False)"),
    "minmax": ("MaxAbsScaler", "MaxAbsScaler()"),
    "robust": ("RobustScaler", "RobustScaler(with_centering=False)"),
    "quantile": ("Normalizer", "Normalizer()"),
}
_ENCODERS = {
    "one-hot": ("OneHotEncoder", 'OneHotEncoder(handle_unknown="ignore", sparse_output=False)'),
    "ordinal": ("OrdinalEncoder", 'OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)'),
    "target": ("TargetEncoder", "TargetEncoder(random_state=0)"),
    "one-hot without rare": (
        "OneHotEncoder",
        'OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=0.02, sparse_output=False)',
    ),
}
_VECTORISERS = {
    "word counts": ("CountVectorizer", 'CountVectorizer(stop_words="english", min_df=2)'),
    "tf-idf of words": ("TfidfVectorizer", 'TfidfVectorizer(stop_words="english", sublinear_tf=True)'),
    "tf-idf of words and pairs": ("TfidfVectorizer", "TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)"),
    "tf-idf of characters": (
        "TfidfVectorizer",
        'TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), min_df=3, sublinear_tf=True)',
    ),
    "hashed words": ("HashingVectorizer", "HashingVectorizer(n_features=512)"),
}


@dataclass(slots=True)
class _Script:
    """A script in the making: its imports, and the steps of its pipeline."""

    imports: set[str] = field(default_factory=set)
    steps: list[str] = field(default_factory=list)

    def use(self, module: str, choice: tuple[str, str]) -> str:
        self.imports.add(f"from sklearn.{module} import {choice[0]}")
        return choice[1]


def render_design(task: Task, action: Sequence[int] | NDArray[Any]) -> str:
    """The script that a design stands for on a task.

    Args:
        task: the task, whose columns decide what there is to impute and to encode.
        action: whole numbers, shape (9,), as in :data:`~wmrl_gym.envs.autoresearch.design.space.SLOTS`.

    Raises:
        ValueError: for an action that is not a design.
    """
    design, spec, columns = Design.of(action), task.spec, profile(task)
    script = _Script()
    prepare = _prepare_text(script, design, columns) if columns.text else _prepare_columns(script, design, columns, spec)
    _select_features(script, design, spec, sparse=bool(columns.text))
    estimator = _estimator(script, design, spec)
    script.use("pipeline", ("make_pipeline", ""))
    steps = ", ".join([*script.steps, "estimator"])
    body = [
        'data = Path(os.environ["DATA_DIR"])',
        'train = pd.read_csv(data / "train.csv")',
        'test = pd.read_csv(data / "test.csv")',
        *prepare,
        f"estimator = {estimator}",
        f"model = make_pipeline({steps})",
    ]
    inputs = f'["{columns.text}"]' if columns.text else "[numeric + categorical]" if columns.categorical else "[numeric]"
    numpy = ["import numpy as np"] if "np." in estimator else []
    imports = [*_PLAIN[:-1], *numpy, _PLAIN[-1], *sorted(script.imports)]
    return "\n".join([*imports, "", *body, *_fit_and_submit(spec, inputs)]) + "\n"


def _prepare_text(script: _Script, design: Design, columns: Profile) -> list[str]:
    vectoriser = VECTORISERS[design.encoding]
    script.steps.append(script.use("feature_extraction.text", _VECTORISERS[vectoriser]))
    if design.name("scaling") != "none":
        script.steps.append(script.use("preprocessing", _SPARSE_SCALERS[design.name("scaling")]))
    return []


def _prepare_columns(script: _Script, design: Design, columns: Profile, spec: Spec) -> list[str]:
    numeric = []
    if design.name("imputation") != "none" and columns.missing:
        numeric.append(script.use("impute", _IMPUTERS[design.name("imputation")]))
    if design.name("scaling") != "none":
        numeric.append(script.use("preprocessing", _SCALERS[design.name("scaling")]))
    lines = [f"numeric = {list(columns.numeric)!r}"]
    if len(columns.numeric) > 32 and not columns.categorical:
        lines = [f'numeric = [name for name in test.columns if name != "{spec.id_column}"]']
    if not columns.categorical:
        script.steps.extend(numeric)
        return lines
    lines.append(f"categorical = {list(columns.categorical)!r}")
    parts = [f"({_chain(script, numeric)}, numeric)"] if columns.numeric else []
    if design.name("encoding") == "drop":
        parts.append('("drop", categorical)')
    else:
        encoder = script.use("preprocessing", _ENCODERS[design.name("encoding")])
        parts.append(f"({_chain(script, [*_category_imputer(script, design, columns), encoder])}, categorical)")
    script.imports.add("from sklearn.compose import make_column_transformer")
    lines.append("columns = make_column_transformer(")
    lines.extend(f"    {part}," for part in parts)
    lines.append(")")
    script.steps.append("columns")
    return lines


def _category_imputer(script: _Script, design: Design, columns: Profile) -> list[str]:
    if design.name("imputation") == "none" or not columns.missing:
        return []
    if design.name("imputation") == "median with flags":
        return [script.use("impute", ("SimpleImputer", 'SimpleImputer(strategy="constant", fill_value="missing")'))]
    return [script.use("impute", ("SimpleImputer", 'SimpleImputer(strategy="most_frequent")'))]


def _chain(script: _Script, steps: list[str]) -> str:
    if not steps:
        return '"passthrough"'
    return steps[0] if len(steps) == 1 else f"make_pipeline({', '.join(steps)})"


def _select_features(script: _Script, design: Design, spec: Spec, *, sparse: bool) -> None:
    test = "f_regression" if spec.kind == "regression" else "f_classif"
    choice = design.name("features")
    if choice in ("best half", "best 10"):
        script.imports.add(f"from sklearn.feature_selection import {test}")
    if choice == "best half":
        step = script.use("feature_selection", ("SelectPercentile", f"SelectPercentile({test}, percentile=50)"))
    elif choice == "best 10":
        step = script.use("feature_selection", ("SelectKBest", f"SelectKBest({test}, k=10)"))
    elif choice == "principal components" and sparse:
        step = script.use("decomposition", ("TruncatedSVD", "TruncatedSVD(n_components=100, random_state=0)"))
    elif choice == "principal components":
        step = script.use("decomposition", ("PCA", "PCA(n_components=0.95, random_state=0)"))
    elif choice == "products":
        step = script.use("preprocessing", ("PolynomialFeatures", "PolynomialFeatures(degree=2, include_bias=False)"))
    else:
        return
    script.steps.append(step)


def _estimator(script: _Script, design: Design, spec: Spec) -> str:
    classify, probabilities = spec.kind != "regression", spec.metric.predicts == "probability"
    chosen = model(design, classify=classify, probabilities=probabilities)
    script.imports.update(chosen.imports)
    if design.name("target") == "plain":
        return chosen.expression
    if not classify:
        script.imports.add("from sklearn.compose import TransformedTargetRegressor")
        return f"TransformedTargetRegressor({chosen.expression}, func=np.log1p, inverse_func=np.expm1)"
    return f'{chosen.expression[:-1]}, class_weight="balanced")' if chosen.balanced else chosen.expression


def _fit_and_submit(spec: Spec, inputs: str) -> list[str]:
    lines = [f'model.fit(train{inputs}, train["{spec.target}"])']
    if spec.metric.predicts != "probability":
        lines.append(f'submission = pd.DataFrame({{"{spec.id_column}": test["{spec.id_column}"]}})')
        lines.append(f'submission["{spec.target}"] = model.predict(test{inputs})')
    else:
        lines.append(f"probabilities = model.predict_proba(test{inputs})")
        lines.append(f'submission = pd.DataFrame({{"{spec.id_column}": test["{spec.id_column}"]}})')
        if spec.kind == "binary":
            lines.append(f'submission["{spec.target}"] = probabilities[:, 1]')
        else:
            lines.append("for number, label in enumerate(model.classes_):")
            lines.append('    submission[f"prob_{label}"] = probabilities[:, number]')
    lines.append('submission.to_csv(os.environ["SUBMISSION_PATH"], index=False)')
    return lines
