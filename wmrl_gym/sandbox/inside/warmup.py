"""What the process that all runs are forked from does ahead of them: a typical script, and the memory pages such a one writes to.

The interpreter specialises code as it runs it, and libraries fill their caches on first use. The process from which all runs are
forked does so once, for all of them.

A forked process shares its parent's pages until it writes to one, which costs a page fault and a copy each time; running any
Python writes to thousands, since even looking at an object counts a reference. Which pages these are is much the same for every
script that uses the same libraries, so one probe run finds them, and every later process has them copied before its script comes,
all in one go.
"""

from __future__ import annotations

import array
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator

from . import kernel

_PAGE = os.sysconf("SC_PAGE_SIZE")
_EXCLUSIVE = 1 << 56 | 1 << 63  # mapped by one process only, and present: see the kernel's pagemap.rst
_GAP = 4  # pages that are copied for nothing, rather than asking for two ranges


def find_hot_ranges() -> array.array[int]:
    """Addresses and lengths, in turn, of the memory that a typical script writes to; found by a process that runs one.

    Empty where the libraries of a typical script have not been imported.
    """
    if not can_rehearse():
        return array.array("Q")
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            kernel.set_dumpable(True)  # its own files under /proc are closed to it otherwise; nobody else is here yet
            areas = list(_writable_areas())  # those that it shares with its parent, and not what it will add
            gc.enable()
            rehearse()
            gc.collect()
            with os.fdopen(write, "wb") as file:
                file.write(_exclusive_ranges(areas).tobytes())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    return array.array("Q", data)


def copy_pages(ranges: array.array[int]) -> None:
    """Make the pages of ``ranges`` this process's own."""
    for start, length in zip(ranges[::2], ranges[1::2], strict=True):
        kernel.populate(start, length)


def _writable_areas() -> Iterator[tuple[int, int]]:
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, permissions = line.split(maxsplit=2)[:2]
            start, end = (int(address, 16) for address in addresses.split("-"))
            if permissions == "rw-p":
                yield start, end


def _exclusive_ranges(areas: list[tuple[int, int]]) -> array.array[int]:
    found = array.array("Q")
    with open("/proc/self/pagemap", "rb", buffering=0) as file:
        for start, end in areas:
            file.seek(start // _PAGE * 8)
            flags = array.array("Q", file.read((end - start) // _PAGE * 8))
            for index, flag in enumerate(flags):
                if flag & _EXCLUSIVE != _EXCLUSIVE:
                    continue
                address = start + index * _PAGE
                if found and 0 <= address - found[-2] - found[-1] <= _GAP * _PAGE:
                    found[-1] = address + _PAGE - found[-2]
                else:
                    found.extend((address, _PAGE))
    return found


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
