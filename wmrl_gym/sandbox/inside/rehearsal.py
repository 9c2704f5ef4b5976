"""A typical script, run ahead of the real ones.

The interpreter specialises code as it runs it, and libraries fill their caches on first use. The process from which all runs are
forked does so once, for all of them.
"""

from __future__ import annotations

import io
import sys
import warnings


def can_rehearse() -> bool:
    """Whether the libraries of a typical script have been imported."""
    return {"pandas", "sklearn.pipeline"} <= sys.modules.keys()


def rehearse() -> None:
    """Do what scripts do for a living, on next to no data.

    Nothing here may start a thread, draw from a global generator, or show a warning that a script should be the first to see.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _fit_and_predict()


def _fit_and_predict() -> None:
    import numpy as np
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import cross_val_score, train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    source = "".join(f"{n},{n % 7},{n % 5}.5,{'abc'[n % 3]},{n % 2}\n" for n in range(60))
    frame = pd.read_csv(io.StringIO("id,x,z,kind,target\n" + source))
    columns = [("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["x", "z"]), ("kinds", OneHotEncoder(), ["kind"])]
    features, target = frame[["x", "z", "kind"]], frame["target"]
    for model in (LogisticRegression(), RandomForestClassifier(5, random_state=0), Ridge()):
        pipeline = make_pipeline(ColumnTransformer(columns), model)
        cross_val_score(pipeline, features, target, cv=3, scoring="accuracy" if hasattr(model, "predict_proba") else None)
        train, test, *_ = train_test_split(features, target, random_state=np.random.RandomState(0))
        pipeline.fit(train, target[train.index])
        answer = pd.DataFrame({"id": test.index, "target": pipeline.predict(test)})
        answer.to_csv(io.StringIO(), index=False)
