"""Builds the outcome models that come with the package, and measures what they are worth: ``python -m benchmarks.pretrain``.

The models know what ``benchmarks.record_executions`` executed on the training tasks. Their settings were chosen by leaving out each
training task in turn (``--choose`` prints the comparison), never by the held-out tasks; so is their doubt about tasks never seen.
Fidelity is measured on the held-out tasks, task by task: the 225 designs of family, size and strength for the design environment,
scripts of a scripted agent for the text environment; with and without descriptors of tasks, and against a constant guess (the mean
of the training rewards, the commonest status).

Writes ``wmrl_gym/world_models/outcome/pretrained/*.npz``, and ``benchmarks/results/pretrained.json`` and ``.png``. The same
records make the same files.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.stats import spearmanr

from benchmarks.executions import HELD_OUT_TASKS, TRAIN_TASKS, Execution, grid_designs, load_grid, read, script
from wmrl_gym import batch
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchText, load_task
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import STATUSES, VALID
from wmrl_gym.envs.autoresearch.text_env import CODE, TextAttempt
from wmrl_gym.factored import Outcome
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import Interface, OutcomeModel
from wmrl_gym.world_models.outcome.checkpoint import Saved, Transfer
from wmrl_gym.world_models.outcome.encoders import HashingEncoder, NoEncoder, TextEncoder
from wmrl_gym.world_models.outcome.forests import Evidence, StatusCalibration, objects
from wmrl_gym.world_models.outcome.pretrained import FOLDER, KINDS, leave_out, write

RESULTS = Path(__file__).parent / "results"
DESIGN, TEXT = KINDS
LOGICS: dict[str, Callable[..., Any]] = {DESIGN: AutoResearchDesign, TEXT: AutoResearchText}
ENCODERS: dict[str, TextEncoder] = {DESIGN: NoEncoder(), TEXT: HashingEncoder(64)}
SETTINGS: dict[str, dict[str, Any]] = {
    kind: {
        "n_trees": 48,
        "min_executions": 8,
        "neighbours": None,
        "sample": False,
        "seed": 0,
        "descriptors": True,
        "min_leaf": 3,
        "max_features": 0.3,
    }
    for kind in KINDS
}
"""Chosen by leaving out each training task."""
ROOM = 4096
"""Executions of its own that a model keeps besides those that it came with."""


def executed(kind: str, name: str) -> list[Execution]:
    """What was recorded of a task and serves for a kind of environment: scripts of agents are no designs."""
    return [each for each in read(name) if kind == TEXT or each.kind != "agent"]


def as_batch(kind: str, names: Sequence[str], chosen: Callable[[str], list[Execution]]) -> tuple[Any, Any, Outcome]:
    """The logic of an environment of these tasks, and executions as a batch of its attempts and outcomes."""
    logic, tasks = LOGICS[kind](list(names)), [load_task(name) for name in names]
    pairs = [(number, each) for number, name in enumerate(names) for each in chosen(name)]
    context = np.array([number for number, _ in pairs], np.int64)
    if kind == DESIGN:
        attempt: Any = DesignAttempt(context, np.array([each.design for _, each in pairs], np.int64))
    else:
        code = tuple(script(tasks[number], each) for number, each in pairs)
        attempt = TextAttempt(context, np.full(len(pairs), CODE, np.int64), code)
    outcome = batch.concatenate([each.verdict.outcome(tasks[number]) for number, each in pairs])
    return logic, attempt, replace(outcome, cpu_s=np.array([each.cpu_s for _, each in pairs]))


def gathered(kind: str) -> Saved:
    """All that a model of this kind comes with, but for its doubt."""
    logic, attempt, outcome = as_batch(kind, TRAIN_TASKS, lambda name: executed(kind, name))
    features = np.hstack([logic.features(attempt), logic.descriptors(attempt)])
    n, texts = len(features), objects(list(logic.text(attempt)))
    evidence = Evidence(features, texts, attempt.task, outcome, np.arange(n, dtype=np.int64))
    columns = logic.context_columns.start, logic.context_columns.stop
    settings = SETTINGS[kind] | {"capacity": n + ROOM}
    return Saved(settings, ENCODERS[kind].settings(), n, {}, STATUSES, TRAIN_TASKS, columns, evidence, None, None)


def without_descriptors(saved: Saved) -> Saved:
    """The same evidence for a model that asks for none."""
    assert saved.evidence is not None and saved.columns is not None
    width = LOGICS[DESIGN](["diabetes"]).descriptors(DesignAttempt(np.zeros(1, np.int64), grid_designs()[:1])).shape[1]
    features = saved.evidence.features[:, :-width]
    return replace(saved, settings=saved.settings | {"descriptors": False}, evidence=replace(saved.evidence, features=features))


def fitted(saved: Saved, logic: Any) -> OutcomeModel:
    """A model of this evidence, in an environment."""
    model = OutcomeModel()
    model._adopt(saved)
    model.bind(Interface(logic.observation_space, logic.action_space, logic.reward_range, logic))
    return model


class Asked:
    """What a model says of the executions of one task that it never saw, beside what happened.

    Args:
        saved: what it knows, of other tasks.
        kind: of environment.
        name: of the task.
        chosen: which executions.
    """

    def __init__(self, saved: Saved, kind: str, name: str, chosen: Callable[[str], list[Execution]]) -> None:
        self.logic, self.attempt, self.outcome = as_batch(kind, [name], chosen)
        self.model = fitted(saved, self.logic)
        predicted, _ = self.model.predict(self.attempt, np.random.default_rng(0))
        self.predicted = predicted.value
        self.chances = self.model.chances(self.attempt)
        known = self.model._learnt.fit
        assert known is not None
        x = self.model._features(self.attempt)
        if self.model.encoder.kind != "none":
            x = np.hstack([x, known.encoder.encode(self.attempt.code)])
        raw = self.model._chances(x)
        mean, variance = known.value.predict(x) if known.value is not None else (np.zeros((len(x), 1)),) * 2
        self.variance = self.model._stages.mix(raw, mean[:, 0], variance[:, 0])[1]
        self.raw = raw

    def measures(self) -> dict[str, float]:
        """Rank correlation, mean absolute error, share of statuses that are right, and their log loss."""
        value, status = self.outcome.value, self.outcome.status
        happened = self.chances[np.arange(len(status)), status]
        return {
            "rank": rank(self.predicted, value),
            "mae": float(np.abs(self.predicted - value).mean()),
            "status": float((self.chances.argmax(axis=1) == status).mean()),
            "log_loss": float(-np.log(np.maximum(happened, 1e-6)).mean()),
            "chosen": float(value[np.argsort(-self.predicted, kind="stable")[:5]].mean()),
        }


def rank(predicted: NDArray[np.float64], value: NDArray[np.float64]) -> float:
    """Spearman's rank correlation, 0 where one of both is constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(np.nan_to_num(spearmanr(predicted, value).statistic))


def left_out(saved: Saved, kind: str) -> list[Asked]:
    """Each training task in turn, asked of a model that knows the others."""
    return [Asked(leave_out(saved, [name]), kind, name, lambda each: executed(kind, each)) for name in TRAIN_TASKS]


def transfer_of(saved: Saved, asked: list[Asked]) -> Transfer:
    """The doubt about tasks never seen."""
    error2 = np.concatenate([(each.outcome.value - each.predicted) ** 2 for each in asked])
    variance = np.concatenate([each.variance for each in asked])
    noise, slope = nnls(np.stack([np.ones(len(error2)), variance], axis=1), error2)[0]
    calibration = StatusCalibration.fitted(
        np.concatenate([each.raw for each in asked]), np.concatenate([each.outcome.status for each in asked])
    )
    return Transfer(saved.executions, float(noise), float(slope), calibration.temperature, calibration.mixing)


def means(asked: list[Asked]) -> dict[str, float]:
    """Means of the measures over tasks."""
    each = [one.measures() for one in asked]
    return {name: float(np.mean([one[name] for one in each])) for name in each[0]}


def choose(kind: str) -> None:
    """Print what candidate settings reach on training tasks that are left out."""
    whole = gathered(kind)
    plain = {"min_leaf": 1, "max_features": 0.5}
    candidates: dict[str, Saved] = {
        "as shipped": whole,
        "no descriptors": without_descriptors(whole),
        "leaves of one, half of the columns": replace(whole, settings=whole.settings | plain),
        "leaves of one": replace(whole, settings=whole.settings | {"min_leaf": 1}),
        "leaves of eight": replace(whole, settings=whole.settings | {"min_leaf": 8}),
        "a tenth of the columns": replace(whole, settings=whole.settings | {"max_features": 0.1}),
        "half of the columns": replace(whole, settings=whole.settings | {"max_features": 0.5}),
        "96 trees": replace(whole, settings=whole.settings | {"n_trees": 96}),
    }
    if kind == TEXT:
        candidates["no encoder"] = replace(whole, encoder=NoEncoder().settings())
        candidates["hashing into 256"] = replace(whole, encoder=HashingEncoder(256).settings())
    for name, saved in candidates.items():
        began = process_time()
        found = means(left_out(saved, kind))
        said = "  ".join(f"{measure} {value:.3f}" for measure, value in found.items())
        print(f"{kind:20} {name:36} {said}  {process_time() - began:.0f} CPU s", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Build and measure, or compare settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--choose", action="store_true", help="only compare settings, by leaving out training tasks")
    chosen = parser.parse_args(argv)
    for kind in chosen.kinds:
        if chosen.choose:
            choose(kind)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
