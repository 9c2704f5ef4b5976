"""The mistakes of agents: each takes a script that is right as far as anyone knows, and returns one that is not."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from wmrl_gym.agents.brief import Brief

_CALL = re.compile(r"\b(?!Voting)[A-Z]\w*(?:Classifier|Regressor|Regression|idge|Vectorizer|Imputer|Encoder|Scaler|NB|VC|VR)\(")
"""A call that makes a transformer or a model, all of whose arguments are named."""
Fault = Callable[[str, Brief, np.random.Generator], str]


def _misspelt_name(code: str, brief: Brief, rng: np.random.Generator) -> str:
    places = list(re.finditer(r"\b(train|test|model|X|X_test|predictions)\b(?!\s*[=,])", code))
    if not places:
        return code
    place = places[int(rng.integers(len(places)))]
    wrong = str(rng.choice([f"{place[1]}_df", f"{place[1]}s", place[1].swapcase()]))
    return code[: place.start()] + wrong + code[place.end() :]


def _misspelt_target(code: str, brief: Brief, rng: np.random.Generator) -> str:
    wrong = str(rng.choice(["target", "label", brief.target.capitalize(), f"{brief.target}_"]))
    return code.replace(f'train["{brief.target}"]', f'train["{wrong}"]')


def _target_kept(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace(f'["{brief.id_column}", "{brief.target}"]', f'["{brief.id_column}"]')


def _missing_import(code: str, brief: Brief, rng: np.random.Generator) -> str:
    lines = code.splitlines(keepends=True)
    imports = [number for number, line in enumerate(lines) if line.startswith("from sklearn")]
    del lines[imports[int(rng.integers(len(imports)))]]
    return "".join(lines)


def _missing_library(code: str, brief: Brief, rng: np.random.Generator) -> str:
    kind = "Regressor" if brief.kind == "number" else "Classifier"
    library, name = [("xgboost", f"XGB{kind}"), ("lightgbm", f"LGBM{kind}"), ("catboost", f"CatBoost{kind}")][
        int(rng.integers(3))
    ]
    code = re.sub(r"(?m)^model = .*$", f"model = {name}(n_estimators=300)", code, count=1)
    return code.replace("import pandas as pd\n", f"import pandas as pd\nfrom {library} import {name}\n", 1)


def _unknown_keyword(code: str, brief: Brief, rng: np.random.Generator) -> str:
    calls = list(re.finditer(_CALL, code))
    end = calls[int(rng.integers(len(calls)))].end()
    wrong = str(rng.choice(["n_job=2", "normalize=True", "sparse=False", "max_dept=4", "verbosity=1"]))
    return f"{code[:end]}{wrong}{'' if code[end] == ')' else ', '}{code[end:]}"


def _bad_value(code: str, brief: Brief, rng: np.random.Generator) -> str:
    number = re.search(r"(n_estimators|max_iter|n_neighbors|C|alpha|max_depth)=[\d.]+", code)
    if number is None:
        return _unknown_keyword(code, brief, rng)
    wrong = str(rng.choice(["-1", "0", '"auto"']))
    return f"{code[: number.start()]}{number[1]}={wrong}{code[number.end() :]}"


def _wrong_file(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace("test.csv", str(rng.choice(["Test.csv", "test_data.csv", "data/test.csv"])), 1)


def _no_submission(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace('os.environ["SUBMISSION_PATH"]', '"submission.csv"')


def _printed_only(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return re.sub(r"(?m)^submission\.to_csv.*$", "print(submission.head())", code)


def _index_kept(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace(", index=False)", ")")


def _wrong_column(code: str, brief: Brief, rng: np.random.Generator) -> str:
    wrong = str(rng.choice(["prediction", "pred", "target"]))
    rename = f"submission.columns = ['{brief.id_column}', *['{wrong}' for _ in submission.columns[1:]]]\nsubmission.to_csv("
    return code.replace("submission.to_csv(", rename)


def _rows_missing(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace("submission.to_csv(", f"submission.{rng.choice(['iloc[:-10]', 'head(100)', 'iloc[1:]'])}.to_csv(")


def _empty_predictions(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace("submission.to_csv(", "submission.iloc[::7, -1] = None\nsubmission.to_csv(")


def _for_training_rows(code: str, brief: Brief, rng: np.random.Generator) -> str:
    return code.replace("(X_test)", "(X)")


def _endless(code: str, brief: Brief, rng: np.random.Generator) -> str:
    slow = [
        "best = None\nfor trial in range(100000):\n    model.fit(X, {y})\n",
        "score = 0\nwhile score < 1:\n    score = 1 - 1 / (2 + sum(i * i for i in range(1000)))\n",
        "for seed in range(20000):\n    model.fit(X, {y})\n    print(seed, flush=True)\n",
    ][int(rng.integers(3))]
    target = "np.log1p(y)" if "np.log1p(y)" in code else "y"
    return code.replace(f"model.fit(X, {target})\n", slow.format(y=target) + f"model.fit(X, {target})\n", 1)


def _unclosed(code: str, brief: Brief, rng: np.random.Generator) -> str:
    places = [match.start() for match in re.finditer(r"\)\n", code)]
    place = places[int(rng.integers(len(places)))]
    return code[:place] + code[place + 1 :]


FAULTS: dict[str, tuple[Fault, float]] = {
    "misspelt name": (_misspelt_name, 3),
    "misspelt target": (_misspelt_target, 2),
    "target kept": (_target_kept, 2),
    "missing import": (_missing_import, 3),
    "missing library": (_missing_library, 3),
    "unknown keyword": (_unknown_keyword, 3),
    "bad value": (_bad_value, 1),
    "wrong file": (_wrong_file, 1),
    "no submission": (_no_submission, 2),
    "printed only": (_printed_only, 1),
    "index kept": (_index_kept, 2),
    "wrong column": (_wrong_column, 2),
    "rows missing": (_rows_missing, 1),
    "empty predictions": (_empty_predictions, 1),
    "for training rows": (_for_training_rows, 1),
    "endless": (_endless, 2),
    "unclosed": (_unclosed, 2),
}
"""Every mistake by name, and how often it is made beside the others."""


def spoilt(code: str, brief: Brief, rng: np.random.Generator) -> tuple[str, str]:
    """The script with a mistake drawn at random, and the mistake's name."""
    weights = np.array([weight for _, weight in FAULTS.values()])
    name = list(FAULTS)[int(rng.choice(len(weights), p=weights / weights.sum()))]
    return FAULTS[name][0](code, brief, rng), name
