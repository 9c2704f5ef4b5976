"""Writes a plan down as a Python script."""

from __future__ import annotations

from dataclasses import dataclass, field

from wmrl_gym.agents.brief import Brief
from wmrl_gym.agents.plans import Plan


@dataclass(slots=True)
class _Parts:
    """A script in the making: import lines, and the lines below them."""

    imports: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)

    def use(self, module: str, name: str) -> None:
        self.imports.add(f"from sklearn.{module} import {name}")


def write(plan: Plan, brief: Brief) -> str:
    """The script of a plan for a task: it reads the data, fits a model and writes a submission."""
    parts = _Parts()
    _read(parts, plan, brief)
    _numbers(parts, plan)
    _fit(parts, plan, brief)
    _submit(parts, plan, brief)
    head = ["import os", *(["import numpy as np"] if any("np." in line for line in parts.lines) else []), "import pandas as pd"]
    head += ["from pathlib import Path"] if plan.style == 1 else []
    return "\n".join([*head, *sorted(parts.imports), "", *parts.lines]) + "\n"


def _read(parts: _Parts, plan: Plan, brief: Brief) -> None:
    if plan.style == 1:
        parts.lines += ['data = Path(os.environ["DATA_DIR"])', 'train = pd.read_csv(data / "train.csv")']
        parts.lines += ['test = pd.read_csv(data / "test.csv")']
    elif plan.style == 2:
        parts.lines += ["def load(name):", '    return pd.read_csv(os.path.join(os.environ["DATA_DIR"], name))', ""]
        parts.lines += ['train, test = load("train.csv"), load("test.csv")', "print(train.shape, test.shape)"]
    else:
        parts.lines += ['train = pd.read_csv(os.environ["DATA_DIR"] + "/train.csv")']
        parts.lines += ['test = pd.read_csv(os.environ["DATA_DIR"] + "/test.csv")']
    if plan.fill == "drop":
        parts.lines.append("train = train.dropna()")
    parts.lines += [
        f'y = train["{brief.target}"]',
        f'X = train.drop(columns=["{brief.id_column}", "{brief.target}"])',
        f'X_test = test.drop(columns=["{brief.id_column}"])',
    ]


def _numbers(parts: _Parts, plan: Plan) -> None:
    """Lines that turn columns into numbers, and fill gaps."""
    if plan.columns in ("words", "letters"):
        _documents(parts, plan)
        return
    if plan.columns == "transformer":
        _transformer(parts, plan)
        return
    parts.lines += {
        "numeric": ['X = X.select_dtypes("number")', "X_test = X_test[X.columns]"],
        "dummies": [
            "both = pd.get_dummies(pd.concat([X, X_test]), dtype=float)",
            "X, X_test = both.iloc[: len(X)], both.iloc[len(X) :]",
        ],
        "codes": [
            'for name in X.select_dtypes(exclude="number").columns:',
            "    levels = sorted(set(X[name].astype(str)) | set(X_test[name].astype(str)))",
            "    X[name] = pd.Categorical(X[name].astype(str), categories=levels).codes",
            "    X_test[name] = pd.Categorical(X_test[name].astype(str), categories=levels).codes",
        ],
    }[plan.columns]
    if plan.extra == "ratios":
        parts.lines += [
            'numeric = list(X.select_dtypes("number").columns[:3])',
            "for a in numeric:",
            "    for b in numeric:",
            "        if a < b:",
            '            X[f"{a}_by_{b}"] = X[a] / (X[b].abs() + 1)',
            '            X_test[f"{a}_by_{b}"] = X_test[a] / (X_test[b].abs() + 1)',
        ]
    if plan.fill == "zero":
        parts.lines.append("X, X_test = X.fillna(0), X_test.fillna(0)")
    elif plan.fill in ("median", "drop"):
        parts.lines.append("X, X_test = X.fillna(X.median()), X_test.fillna(X.median())")


def _documents(parts: _Parts, plan: Plan) -> None:
    parts.use("feature_extraction.text", "TfidfVectorizer")
    settings = {
        "words": ("min_df=2", "ngram_range=(1, 2), min_df=2, sublinear_tf=True", 'stop_words="english", max_features=2000'),
        "letters": ("ngram_range=(1, 3)", "ngram_range=(2, 4), min_df=2", "ngram_range=(1, 4), sublinear_tf=True"),
    }[plan.columns][plan.style]
    analyzer = 'analyzer="char_wb", ' if plan.columns == "letters" else ""
    parts.lines += [
        'strings = X.select_dtypes(exclude="number").columns',
        'documents = X[strings].fillna("").astype(str).agg(" ".join, axis=1)',
        'documents_test = X_test[strings].fillna("").astype(str).agg(" ".join, axis=1)',
        f"vectorizer = TfidfVectorizer({analyzer}{settings})",
        "X = vectorizer.fit_transform(documents)",
        "X_test = vectorizer.transform(documents_test)",
    ]
    if plan.model in ("boosting", "gradient boosting") or (plan.model == "bayes" and plan.scale):
        parts.lines.append("X, X_test = X.toarray(), X_test.toarray()")


def _transformer(parts: _Parts, plan: Plan) -> None:
    parts.use("compose", "ColumnTransformer")
    parts.use("pipeline", "make_pipeline")
    parts.use("preprocessing", "OneHotEncoder")
    steps = []
    if plan.fill != "none":
        parts.use("impute", "SimpleImputer")
        steps.append(
            'SimpleImputer(strategy="median")' if plan.fill != "zero" else 'SimpleImputer(strategy="constant", fill_value=0)'
        )
    if plan.scale:
        parts.use("preprocessing", "StandardScaler")
        steps.append("StandardScaler()")
    numeric = f"make_pipeline({', '.join(steps)})" if steps else '"passthrough"'
    parts.lines += [
        'numeric = X.select_dtypes("number").columns',
        "categorical = [name for name in X.columns if name not in numeric]",
        "columns = ColumnTransformer([",
        f'    ("numbers", {numeric}, numeric),',
        '    ("categories", OneHotEncoder(handle_unknown="ignore", sparse_output=False), categorical),',
        "])",
        "X = columns.fit_transform(X)",
        "X_test = columns.transform(X_test)",
    ]


def _fit(parts: _Parts, plan: Plan, brief: Brief) -> None:
    name = estimator(parts, plan, brief, model=plan.model)
    if plan.extra == "blend":
        kind = "Regressor" if brief.kind == "number" else "Classifier"
        other = estimator(parts, plan, brief, model="linear" if plan.model != "linear" else "random forest")
        parts.use("ensemble", f"Voting{kind}")
        voting = "" if brief.kind == "number" else ', voting="soft"'
        name = f'Voting{kind}([("first", {name}), ("second", {other})]{voting})'
    if plan.scale and plan.columns != "transformer":
        parts.use("pipeline", "make_pipeline")
        parts.use("preprocessing", "StandardScaler")
        sparse = plan.columns in ("words", "letters")
        name = f"make_pipeline(StandardScaler({'with_mean=False' if sparse else ''}), {name})"
    parts.lines.append(f"model = {name}")
    if plan.extra == "cross-validation":
        parts.use("model_selection", "cross_val_score")
        parts.lines.append("print(cross_val_score(model, X, y, cv=3).mean())")
    if plan.extra == "search" and plan.model in _SEARCHED and not (plan.scale and plan.columns != "transformer"):
        parts.use("model_selection", "GridSearchCV")
        parts.lines.append(f"model = GridSearchCV(model, {_SEARCHED[plan.model]}, cv=3)")
    log = plan.extra == "log target" and brief.kind == "number"
    parts.lines.append("model.fit(X, np.log1p(y))" if log else "model.fit(X, y)")


_SEARCHED = {
    "neighbours": '{"n_neighbors": [3, 7, 15, 30]}',
    "tree": '{"max_depth": [2, 4, 8, None]}',
    "random forest": '{"min_samples_leaf": [1, 3, 10]}',
    "boosting": '{"learning_rate": [0.03, 0.1, 0.3]}',
    "support vectors": '{"C": [0.3, 3.0, 30.0]}',
}


def estimator(parts: _Parts, plan: Plan, brief: Brief, *, model: str) -> str:
    """The expression of a model, whose import is added to the parts."""
    a, b, classify = plan.size, plan.strength, brief.kind != "number"
    kind = "Classifier" if classify else "Regressor"
    c, leaf = (0.05, 1.0, 20.0)[b], (1, 3, 10)[b]
    trees = f"n_estimators={(50, 200, 500)[a]}, min_samples_leaf={leaf}, random_state=42"
    if model == "support vectors":
        arguments = f"C={c}, probability=True" if brief.kind.startswith("prob") else f"C={c}"
        module, name = "svm", "SVC" if classify else "SVR"
        arguments += f', kernel="{("rbf", "rbf", "linear")[a]}"'
    elif model == "linear":
        module, name = "linear_model", "LogisticRegression" if classify else "Ridge"
        arguments = f"C={c}, max_iter={(50, 500, 2000)[a]}" if classify else f"alpha={c}"
    elif model == "bayes":
        sparse = plan.columns in ("words", "letters") and not plan.scale
        module, name = (
            ("naive_bayes", "MultinomialNB" if sparse else "GaussianNB") if classify else ("linear_model", "BayesianRidge")
        )
        arguments = f"alpha={c}" if name == "MultinomialNB" else ""
    elif model == "network":
        module, name = "neural_network", f"MLP{kind}"
        hidden = ("(16,)", "(64,)", "(128, 64)")[a]
        arguments = f"hidden_layer_sizes={hidden}, alpha={(0.0001, 0.01, 1.0)[b]}, max_iter={(60, 120, 300)[a]}, random_state=0"
    else:
        module, name, arguments = {
            "neighbours": ("neighbors", f"KNeighbors{kind}", f"n_neighbors={(3, 10, 40)[a]}"),
            "tree": ("tree", f"DecisionTree{kind}", f"max_depth={(3, 6, None)[a]}, min_samples_leaf={leaf}, random_state=0"),
            "random forest": ("ensemble", f"RandomForest{kind}", trees),
            "extra trees": ("ensemble", f"ExtraTrees{kind}", trees),
            "boosting": (
                "ensemble",
                f"HistGradientBoosting{kind}",
                f"max_iter={(50, 150, 400)[a]}, learning_rate={(0.03, 0.1, 0.3)[b]}, random_state=0",
            ),
            "gradient boosting": (
                "ensemble",
                f"GradientBoosting{kind}",
                f"n_estimators={(50, 100, 300)[a]}, max_depth={(2, 3, 5)[b]}, random_state=0",
            ),
            "dummy": ("dummy", f"Dummy{kind}", 'strategy="prior"' if classify else ""),
        }[model]
    parts.use(module, name)
    return f"{name}({arguments})"


def _submit(parts: _Parts, plan: Plan, brief: Brief) -> None:
    value = {
        "number": "model.predict(X_test)",
        "label": "model.predict(X_test)",
        "probability": "model.predict_proba(X_test)[:, 1]",
        "probabilities": "model.predict_proba(X_test)",
    }[brief.kind]
    if plan.extra == "log target" and brief.kind == "number":
        value = f"np.expm1({value})"
    parts.lines.append(f"predictions = {value}")
    if plan.frame == "sample":
        folder = {0: 'os.environ["DATA_DIR"] + "/sample_submission.csv"', 1: 'data / "sample_submission.csv"'}
        read = 'load("sample_submission.csv")' if plan.style == 2 else f"pd.read_csv({folder[plan.style]})"
        columns = "submission.columns[1:]" if brief.kind == "probabilities" else f'"{brief.predictions[0]}"'
        parts.lines += [f"submission = {read}", f"submission[{columns}] = predictions"]
    elif brief.kind == "probabilities":
        parts.lines += [
            f'submission = pd.DataFrame(predictions, columns=[f"{_stem(brief)}{{label}}" for label in model.classes_])',
            f'submission.insert(0, "{brief.id_column}", test["{brief.id_column}"])',
        ]
    else:
        named = f'{{"{brief.id_column}": test["{brief.id_column}"], "{brief.predictions[0]}": predictions}}'
        parts.lines.append(f"submission = pd.DataFrame({named})")
    parts.lines.append('submission.to_csv(os.environ["SUBMISSION_PATH"], index=False)')


def _stem(brief: Brief) -> str:
    """What the names of the prediction columns begin with."""
    return brief.predictions[0].split("_")[0] + "_"
