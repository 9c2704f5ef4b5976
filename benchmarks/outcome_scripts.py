"""Scripts with known outcomes: written solutions of every task, some of them broken as people and agents break them, and run.

Half of the scripts are left as they are; the others get one fault each, from a misspelt name to a submission with rows missing.
Executions are kept in a file, and only what is not there yet is executed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.hand_written_solutions import hand_written
from wmrl_gym.envs.autoresearch import load_task
from wmrl_gym.envs.autoresearch.design.code import render_design
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.reply import syntax_error
from wmrl_gym.envs.autoresearch.text_env import CODE, AutoResearchText, TextAttempt
from wmrl_gym.factored import Outcome
from wmrl_gym.sandbox import Limits, Sandbox
from wmrl_gym.study.config import STUDY_TASKS

LIMITS = Limits(wall_s=12.0, cpu_s=3.0)
"""CPU time decides, so that a busy machine gives the same outcomes."""


@dataclass(frozen=True, slots=True)
class Execution:
    """A script, its task, and what came of it."""

    task: str
    code: str
    status: int
    value: float
    shown: float
    feedback: str
    cpu_s: float


def executions(per_task: int, *, seed: int, sandbox: Sandbox, file: Path) -> list[Execution]:
    """``per_task`` scripts of every embedded task, executed."""
    known: dict[tuple[str, str], Execution] = {}
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
        known = {(each.task, each.code): each for each in (Execution(**json.loads(line)) for line in lines)}
    wanted = [(name, code) for name in STUDY_TASKS for code in scripts(name, per_task, seed=seed)]
    missing = [pair for pair in dict.fromkeys(wanted) if pair not in known]
    file.parent.mkdir(parents=True, exist_ok=True)
    logics = {name: AutoResearchText(name, sandbox=sandbox, limits=LIMITS) for name in STUDY_TASKS}
    with file.open("a", encoding="utf-8") as out, ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda pair: _execute(logics[pair[0]], *pair), missing):
            known[done.task, done.code] = done
            out.write(json.dumps(asdict(done)) + "\n")
    return [known[pair] for pair in wanted]


def scripts(name: str, count: int, *, seed: int) -> list[str]:
    """Random designs, a fifth of them solutions of a careful person instead, every second one with a fault."""
    task = load_task(name)
    rng = np.random.default_rng([seed, *name.encode()])
    careful = [code for made, code in hand_written(task).items() if made != "constant guess"]
    chosen = []
    for number in range(count):
        code = str(rng.choice(careful)) if rng.random() < 0.2 else render_design(task, rng.integers(0, NVEC))
        faulty = _FAULTS[int(rng.integers(len(_FAULTS)))](code, rng)
        # Syntax errors need no model: the gate knows them.
        chosen.append(faulty if number % 2 and syntax_error(faulty) is None else code)
    return chosen


def as_outcome(executed: list[Execution]) -> Outcome:
    """Their outcomes as one batch."""
    n = len(executed)
    return Outcome(
        np.array([each.status for each in executed], np.int64),
        np.array([each.value for each in executed], np.float64),
        np.array([each.shown for each in executed], np.float64),
        np.array([each.feedback for each in executed], dtype=object),
        np.ones(n, bool),
        np.array([each.cpu_s for each in executed], np.float64),
        np.zeros(n),
    )


def as_attempt(executed: list[Execution], contexts: tuple[str, ...]) -> TextAttempt:
    """Them as attempts in an environment of these tasks."""
    task = np.array([contexts.index(each.task) for each in executed], np.int64)
    return TextAttempt(task, np.full(len(executed), CODE, np.int64), tuple(each.code for each in executed))


def _execute(logic: AutoResearchText, name: str, code: str) -> Execution:
    outcome = logic.execute(TextAttempt(np.zeros(1, np.int64), np.full(1, CODE, np.int64), (code,)))
    if not outcome.known[0]:
        raise RuntimeError(f"the sandbox failed: {outcome.feedback[0]}")
    numbers = float(outcome.value[0]), float(outcome.shown[0])
    return Execution(name, code, int(outcome.status[0]), *numbers, str(outcome.feedback[0]), float(outcome.cpu_s[0]))


Fault = Callable[[str, np.random.Generator], str]


def _misspelt_name(code: str, rng: np.random.Generator) -> str:
    names = sorted(set(re.findall(r"\b(train|test|model|data|submission|estimator|columns|numeric|flat)\b", code)))
    places = [match for name in names for match in re.finditer(rf"\b{name}\b(?!\s*=)", code)]
    if not places:
        return code
    place = places[int(rng.integers(len(places)))]
    return f"{code[: place.start()]}{place.group()}_df{code[place.end() :]}"


def _unknown_keyword(code: str, rng: np.random.Generator) -> str:
    return _in_a_call(code, rng, str(rng.choice(["n_jobs_=2", "learning_rate_=0.1", "normalise=True", "max_deph=4"])))


def _bad_value(code: str, rng: np.random.Generator) -> str:
    return _in_a_call(
        code, rng, str(rng.choice(['random_state="zero"', "alpha=-1.0", 'C="high"', "n_estimators=0", "max_iter=0"]))
    )


def _in_a_call(code: str, rng: np.random.Generator, argument: str) -> str:
    calls = list(
        re.finditer(r"\b(?:[A-Z]\w+(?:Classifier|Regressor|Regression|Scaler|Imputer|Encoder|CV|PCA)|SVC|SVR|Ridge)\(", code)
    )
    if not calls:
        return code
    end = calls[int(rng.integers(len(calls)))].end()
    return f"{code[:end]}{argument}{'' if code[end] == ')' else ', '}{code[end:]}"


def _missing_import(code: str, rng: np.random.Generator) -> str:
    lines = code.splitlines(keepends=True)
    imports = [number for number, line in enumerate(lines) if line.startswith("from sklearn")]
    if not imports:
        return code
    at = imports[int(rng.integers(len(imports)))]
    kept = lines[at].replace("sklearn.", "sklearn.the_") if rng.random() < 0.5 else ""
    return "".join([*lines[:at], kept, *lines[at + 1 :]])


def _wrong_file(code: str, rng: np.random.Generator) -> str:
    return code.replace("test.csv", "Test.csv" if rng.random() < 0.5 else "data/test.csv")


def _nothing_written(code: str, rng: np.random.Generator) -> str:
    if rng.random() < 0.5:
        return code.replace('os.environ["SUBMISSION_PATH"]', '"submission.csv"')
    return code.replace(".to_csv(", ".to_string(").replace(", index=False)", ")").replace('os.environ["SUBMISSION_PATH"]', "")


def _wrong_submission(code: str, rng: np.random.Generator) -> str:
    cut = ["iloc[:-5]", "iloc[1:]", "rename(columns=str.upper)", 'add_prefix("my_")'][int(rng.integers(4))]
    return code.replace(".to_csv(", f".{cut}.to_csv(")


def _slow(code: str, rng: np.random.Generator) -> str:
    lines = code.splitlines(keepends=True)
    at = next((number for number, line in enumerate(lines) if line.startswith("model.fit")), len(lines))
    loop = "for fold in range(4000):\n    model.fit(" + lines[at].split("model.fit(", 1)[-1] if at < len(lines) else ""
    return "".join([*lines[:at], loop, *lines[at:]])


def _columns_of_the_target(code: str, rng: np.random.Generator) -> str:
    return (
        code.replace('train["', 'train["the_')
        if rng.random() < 0.5
        else code.replace("numeric = ", 'numeric = ["no_such_column"] + ')
    )


_FAULTS: tuple[Fault, ...] = (
    _misspelt_name,
    _unknown_keyword,
    _bad_value,
    _missing_import,
    _wrong_file,
    _nothing_written,
    _wrong_submission,
    _slow,
    _columns_of_the_target,
)
