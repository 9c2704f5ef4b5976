"""Builds the outcome models that come with the package, and measures what they are worth: ``python -m benchmarks.pretrain``.

The models know what ``benchmarks.record_executions`` executed on the training tasks. Their settings were chosen by leaving out
each training task in turn (``--choose`` prints the comparison), never by the held-out tasks; so is their doubt about tasks never
seen. Fidelity is measured on the held-out tasks, task by task: the 225 designs of family, size and strength for the design
environment, scripts of a scripted agent for the text environment; with and without descriptors of tasks, and against a constant
guess (the mean of the training rewards, the commonest status).

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

from benchmarks.executions import HELD_OUT_TASKS, TRAIN_TASKS, Execution, grid_designs, grid_executions, read, script
from wmrl_gym import batch
from wmrl_gym.envs.autoresearch import AutoResearchDesign, AutoResearchText, load_task
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.envs.autoresearch.rules import STATUSES
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
ENCODERS: dict[str, TextEncoder] = {DESIGN: NoEncoder(), TEXT: HashingEncoder(256)}
_SHARED: dict[str, Any] = {"n_trees": 48, "min_executions": 8, "neighbours": None, "sample": False, "seed": 0}
# Fits cost a second or two, however few executions are new: the share is of a model's own ones.
_SHARED |= {"descriptors": True, "refit_share": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {
    DESIGN: _SHARED | {"min_leaf": 3, "max_features": 0.3},
    TEXT: _SHARED | {"min_leaf": 1, "max_features": 0.5},
}
"""Chosen by leaving out each training task."""
ROOM = 4096
"""Executions of its own that a model keeps besides those that it came with."""


def executed(kind: str, name: str) -> list[Execution]:
    """What was recorded of a task and serves for a kind of environment.

    Scripts of agents are no designs; and designs of the grid, most of which do well, would outnumber what agents write.
    """
    return [each for each in read(name) if each.kind != ("agent" if kind == DESIGN else "grid")]


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
    return Saved(settings, ENCODERS[kind].settings(), n, n, {}, STATUSES, TRAIN_TASKS, columns, evidence, None, None)


def without_descriptors(saved: Saved, kind: str) -> Saved:
    """The same evidence for a model that asks for none."""
    assert saved.evidence is not None
    task = np.zeros(1, np.int64)
    attempt: Any = DesignAttempt(task, grid_designs()[:1]) if kind == DESIGN else TextAttempt(task, np.full(1, CODE), ("",))
    features = saved.evidence.features[:, : -LOGICS[kind](["diabetes"]).descriptors(attempt).shape[1]]
    return replace(saved, settings=saved.settings | {"descriptors": False}, evidence=replace(saved.evidence, features=features))


def fitted(saved: Saved, logic: Any) -> OutcomeModel:
    """A model of this evidence, in an environment."""
    model = OutcomeModel()
    model._adopt(saved, where="what was gathered")
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
        predicted, self.std = self.model.predict(self.attempt, np.random.default_rng(0))
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
    """Each training task in turn, asked of a model that knows the others: designs, or scripts of agents."""

    def asked(name: str) -> list[Execution]:
        return [each for each in executed(kind, name) if kind == DESIGN or each.kind == "agent"]

    return [Asked(leave_out(saved, [name]), kind, name, asked) for name in TRAIN_TASKS]


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
    candidates: dict[str, Saved] = {
        "as shipped": whole,
        "no descriptors": without_descriptors(whole, kind),
        "a third of the columns": replace(whole, settings=whole.settings | {"max_features": 0.3}),
        "leaves of three": replace(whole, settings=whole.settings | {"min_leaf": 3}),
        "leaves of one": replace(whole, settings=whole.settings | {"min_leaf": 1}),
        "leaves of eight": replace(whole, settings=whole.settings | {"min_leaf": 8}),
        "a tenth of the columns": replace(whole, settings=whole.settings | {"max_features": 0.1}),
        "half of the columns": replace(whole, settings=whole.settings | {"max_features": 0.5}),
        "96 trees": replace(whole, settings=whole.settings | {"n_trees": 96}),
    }
    if kind == TEXT:
        candidates["no encoder"] = replace(whole, encoder=NoEncoder().settings())
        candidates["hashing into 64"] = replace(whole, encoder=HashingEncoder(64).settings())
    for name, saved in candidates.items():
        began = process_time()
        found = means(left_out(saved, kind))
        said = "  ".join(f"{measure} {value:.3f}" for measure, value in found.items())
        print(f"{kind:20} {name:36} {said}  {process_time() - began:.0f} CPU s", flush=True)


def held_out(kind: str, name: str) -> list[Execution]:
    """What fidelity is measured on: the whole grid of designs, or the scripts of agents."""
    return grid_executions(name) if kind == DESIGN else [each for each in read(name) if each.kind == "agent"]


def constant(saved: Saved, outcome: Outcome) -> dict[str, float]:
    """The measures of a constant guess: the mean of the training rewards, the commonest status and the base rates."""
    assert saved.evidence is not None
    known = saved.evidence.outcome
    rates = np.bincount(known.status, minlength=len(STATUSES)) / len(known.status)
    return {
        "rank": 0.0,
        "mae": float(np.abs(known.value.mean() - outcome.value).mean()),
        "status": float((outcome.status == rates.argmax()).mean()),
        "log_loss": float(-np.log(np.maximum(rates[outcome.status], 1e-6)).mean()),
        "chosen": float(outcome.value.mean()),
    }


def fidelity(kind: str, saved: Saved) -> dict[str, dict[str, dict[str, float]]]:
    """Measures on each held-out task, and their means, by contestant."""
    contestants = {"pretrained": saved, "without descriptors": without_descriptors(saved, kind)}
    table: dict[str, dict[str, dict[str, float]]] = {}
    for name in HELD_OUT_TASKS:
        asked = {label: Asked(each, kind, name, lambda task: held_out(kind, task)) for label, each in contestants.items()}
        table[name] = {label: each.measures() for label, each in asked.items()}
        outcome = asked["pretrained"].outcome
        table[name]["constant guess"] = constant(saved, outcome)
        inside = np.abs(outcome.value - asked["pretrained"].predicted) <= 1.645 * asked["pretrained"].std
        table[name]["pretrained"] |= {"inside_90": float(inside.mean()), "executions": len(inside)}
    labels = table[HELD_OUT_TASKS[0]]
    table["mean"] = {
        label: {measure: float(np.mean([table[name][label][measure] for name in HELD_OUT_TASKS])) for measure in labels[label]}
        for label in labels
    }
    return table


def build(kind: str) -> dict[str, Any]:
    """Write one file, and say what it holds and what it is worth."""
    began = process_time()
    saved = gathered(kind)
    asked = left_out(saved, kind)
    saved = replace(saved, transfer=transfer_of(saved, asked))
    path = FOLDER / f"{kind}.npz"
    write(path, saved)
    loading = process_time()
    model = OutcomeModel.pretrained()
    logic = LOGICS[kind](list(HELD_OUT_TASKS))
    model.bind(Interface(logic.observation_space, logic.action_space, logic.reward_range, logic))
    assert saved.evidence is not None
    assert saved.transfer is not None
    counts = np.bincount(saved.evidence.outcome.status, minlength=len(STATUSES)).tolist()
    document = {
        "executions": saved.executions,
        "statuses": dict(zip(STATUSES, counts, strict=True)),
        "execution_cpu_s": float(saved.evidence.outcome.cpu_s.sum()),
        "bytes": path.stat().st_size,
        "bind_cpu_s": process_time() - loading,
        "settings": saved.settings,
        "encoder": saved.encoder,
        "transfer": saved.transfer.as_json(),
        "left_out_training_tasks": {name: each.measures() for name, each in zip(TRAIN_TASKS, asked, strict=True)},
        "left_out_mean": means(asked),
    }
    document["held_out"] = fidelity(kind, saved)
    document["build_cpu_s"] = process_time() - began
    return document


def show(kind: str, document: dict[str, Any]) -> None:
    """Print what was measured."""
    print(
        f"\n{kind}: {document['executions']} executions, {document['bytes']:,} bytes, ready in {document['bind_cpu_s']:.1f} CPU s"
    )
    print(f"{'task':<16} {'':<20} {'rank':>6} {'mae':>6} {'status':>6} {'loss':>6} {'best 5':>6}")
    for name, rows in document["held_out"].items():
        for label, each in rows.items():
            numbers = (each[measure] for measure in ("rank", "mae", "status", "log_loss", "chosen"))
            print(f"{name:<16} {label:<20} {' '.join(f'{number:>6.3f}' for number in numbers)}")


def markdown(documents: dict[str, Any]) -> str:
    """The table of the documentation: each measure with descriptors, without them, and of a constant guess."""
    labels = ("pretrained", "without descriptors", "constant guess")
    lines = []
    for kind, document in documents.items():
        what = "designs" if kind == DESIGN else "scripts"
        lines += ["", f"| {what} of | executions | rank correlation | mean absolute error | status right | inside 90% |"]
        lines += ["|---|---|---|---|---|---|"]
        for name, rows in document["held_out"].items():
            cells = ["/".join(f"{rows[label][measure]:.2f}".lstrip("0") for label in labels) for measure in ("mae", "status")]
            ranks = "/".join(f"{rows[label]['rank']:.2f}" for label in labels[:2])
            counted, inside = rows["pretrained"]["executions"], rows["pretrained"]["inside_90"]
            lines.append(f"| {name} | {counted:.0f} | {ranks} | {cells[0]} | {cells[1]} | {inside:.2f} |")
    return "\n".join(lines[1:])


def draw(documents: dict[str, Any], path: Path) -> None:
    """A picture: rank correlation and mean absolute error on each held-out task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 2.9 * len(documents)), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {"rank": "rank correlation", "mae": "mean absolute error of the reward", "status": "share of statuses right"}
    every = figure.subplots(len(documents), len(titles), squeeze=False)
    for line, (kind, document) in zip(every, documents.items(), strict=True):
        rows = document["held_out"]
        for axes, (measure, title) in zip(line, titles.items(), strict=True):
            for number, label in enumerate(rows["mean"]):
                places = np.arange(len(rows)) + 0.27 * number
                axes.bar(places, [each[label][measure] for each in rows.values()], width=0.25, label=label)
            axes.set_xticks(np.arange(len(rows)) + 0.27, list(rows), rotation=40, ha="right", fontsize=8)
            axes.set_title(f"{kind.removeprefix('autoresearch-')}: {title}", fontsize=9)
            axes.axhline(0, color="#444444", linewidth=0.8)
    figure.legend(*every[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=130)


def main(argv: Sequence[str] | None = None) -> int:
    """Build and measure, or compare settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--choose", action="store_true", help="only compare settings, by leaving out training tasks")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(argv)
    if given.choose:
        for kind in given.kinds:
            choose(kind)
        return 0
    documents = {}
    for kind in given.kinds:
        documents[kind] = build(kind)
        show(kind, documents[kind])
    given.results.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), **documents}
    (given.results / "pretrained.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    draw(documents, given.results / "pretrained.png")
    print(f"\n{markdown(documents)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
