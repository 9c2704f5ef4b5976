"""A world model of factored environments: predicts the outcome of an attempt, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from wmrl_gym import batch
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Outcome
from wmrl_gym.randomness import draw
from wmrl_gym.world_models.attempts import AttemptModel, PredictedOutcomes
from wmrl_gym.world_models.base import DataSpan, Interface, WorldModelError
from wmrl_gym.world_models.outcome.checkpoint import SETTINGS, Saved, Transfer
from wmrl_gym.world_models.outcome.encoders import HashingEncoder, NoEncoder, TextEncoder, TfidfEncoder
from wmrl_gym.world_models.outcome.forests import (
    FEW,
    PRIOR_STD,
    Evidence,
    Fit,
    Growth,
    Knowledge,
    Stages,
    StatusCalibration,
    encode,
    fit,
    objects,
)
from wmrl_gym.world_models.outcome.neighbours import nearest_executions, nearest_feedback
from wmrl_gym.world_models.outcome.pretrained import Pretrained
from wmrl_gym.world_models.ranges import check_all_whole, check_not_negative, check_whole

EncoderChoice = Literal["tfidf", "hashing", "none"]
_BY_NAME: dict[str, type[TextEncoder]] = {each.kind: each for each in (TfidfEncoder, HashingEncoder, NoEncoder)}
_SHOWN = 3
"""How many neighbours ``info`` lists by default, in environments whose observations hold text."""


class OutcomeModel(AttemptModel):
    """Learns (task, attempt) -> status, value and how sure it is of that, from real executions.

    Two stages (the value of code that runs and the chance that it runs have different causes): a forest over the statuses, and
    one over the value of the attempts whose status leaves it open. The predicted value is the expectation over both, and its
    doubt is calibrated on what the trees did not see. So are the probabilities that :meth:`chances` gives; the expectation takes
    the forest's own, whose squared error is smaller. What needs no execution, such as a syntax error, is answered exactly by the
    environment's own gate.

    Where ``neighbours`` is not 0, ``info`` lists the most similar executed attempts, the nearest first, as arrays of shape (B,
    neighbours): ``neighbour`` (the number of the execution, see :meth:`execution`; -1 for none), ``neighbour_distance``,
    ``neighbour_status`` and ``neighbour_value``.

    Args:
        n_trees: trees in each forest.
        min_executions: real executions before the first fit; until then :attr:`fitted` is False.
        encoder: what is added to the environment's own features: ``"tfidf"`` (words of the executed code), ``"hashing"`` (words
            by their hash, quickest), ``"none"``, or a :class:`TextEncoder`, such as ``SentenceEncoder`` or ``CausalLMEncoder``.
        neighbours: how many executed attempts ``info`` lists; None is three where observations hold text, else 0.
        capacity: executions kept for training; beyond that, older ones are thinned out at random.
        refit_share: the forests are grown anew once so many executions are new, as a share of those that they were grown on, so
            that learning N executions costs as much as a few fits of N. 0 is at each update. A model that came fitted counts its
            own executions alone.
        sample: draw one outcome from the predicted distribution instead of its expectation.
        seed: of the forests.
        descriptors: add what the environment says of each attempt's context (``Factored.descriptors``), so that what was learnt
            in some contexts serves in others.
        min_leaf: executions in a leaf of a tree at least.
        max_features: the share of columns that are tried at each split.

    Raises:
        ValueError: an argument out of range.
    """

    learns_in_background: ClassVar[bool] = True

    def __init__(
        self,
        n_trees: int = 48,
        *,
        min_executions: int = 8,
        encoder: EncoderChoice | TextEncoder = "tfidf",
        neighbours: int | None = None,
        capacity: int = 4096,
        refit_share: float = 0.2,
        sample: bool = False,
        seed: int = 0,
        descriptors: bool = False,
        min_leaf: int = 1,
        max_features: float = 0.5,
    ) -> None:
        bounds = {"n_trees": (n_trees, 2), "min_executions": (min_executions, 2), "capacity": (capacity, 1), "seed": (seed, 0)}
        bounds |= {"min_leaf": (min_leaf, 1)}
        check_all_whole(bounds)
        if not isinstance(sample, bool):
            raise TypeError(f"sample must be true or false, got {sample!r}")
        if capacity < min_executions:
            raise ValueError(f"capacity must be at least min_executions, {min_executions}, got {capacity}")
        if neighbours is not None:
            check_whole("neighbours", neighbours, least=0)
        check_not_negative("refit_share", refit_share)
        if not isinstance(descriptors, bool):
            raise TypeError(f"descriptors must be true or false, got {descriptors!r}")
        if not isinstance(max_features, (int, float)) or not 0.0 < max_features <= 1.0:
            raise ValueError(f"max_features must lie in (0, 1], got {max_features!r}")
        if not isinstance(encoder, TextEncoder):
            if not isinstance(encoder, str) or encoder not in _BY_NAME:
                raise ValueError(f'encoder must be "tfidf", "hashing", "none" or a TextEncoder, got {encoder!r}')
            encoder = _BY_NAME[encoder]()
        self.n_trees, self.min_executions, self.encoder = n_trees, min_executions, encoder
        self.neighbours, self.capacity, self.sample, self.seed = neighbours, capacity, sample, seed
        self.refit_share = float(refit_share)
        self.descriptors, self.min_leaf, self.max_features = descriptors, min_leaf, max_features
        self._learnt = Knowledge(None, 0, None)
        self._waiting: Saved | Pretrained | None = None
        self._transfer: Transfer | None = None

    @classmethod
    def pretrained(cls, *, without: str | Sequence[str] = (), seed: int = 0, neighbours: int | None = None) -> OutcomeModel:
        """A model that knows the embedded training tasks of AutoResearch, and so something of any other task.

        It was fitted on recorded executions of designs and of scripts, for the design environment and the text environment; the
        trees grow from them when it meets its environment, in a second or two. It can be used at once, and goes on learning.

        Args:
            without: a task's name, or several, whose executions it is not to know, for a study on that task.
            seed: of the forests.
            neighbours: how many executed attempts ``info`` lists; None is three where observations hold text, else 0.

        Raises:
            WorldModelError: when it is bound to an environment that is not AutoResearch.
            ValueError: then, for a task to be left out that it does not know.
        """
        model = cls(seed=seed, neighbours=neighbours)
        model._waiting = Pretrained((without,) if isinstance(without, str) else tuple(without))
        return model

    @property
    def executions(self) -> int:
        """Executions ever learnt from."""
        return self._learnt.executions

    @property
    def evidence(self) -> Evidence | None:
        """The executed attempts that are kept; None before the first."""
        return self._learnt.evidence

    @property
    def fitted(self) -> bool:
        return self._learnt.fit is not None

    @property
    def span(self) -> DataSpan:
        """Which executions the present fit was trained on."""
        evidence = self._learnt.evidence
        if evidence is None or self._learnt.fit is None or not self._learnt.fitted:
            return DataSpan(0, 0, 0, {})
        evidence = batch.take(evidence, np.arange(self._learnt.fitted))
        by_context = Counter(self.factored.contexts[each] if each >= 0 else "elsewhere" for each in evidence.context)
        return DataSpan(int(evidence.number[0]), int(evidence.number[-1]) + 1, len(evidence.number), dict(by_context))

    def bind(self, interface: Interface) -> None:
        super().bind(interface)
        values = np.append(self._fixed, self.factored.open_values or self.factored.reward_range)
        self._stages = Stages(self._fixed, (float(np.nanmin(values)), float(np.nanmax(values))))
        if isinstance(self._waiting, Pretrained):
            saved = self._waiting.saved_for(self.factored)
            settings = saved.settings | {"seed": self.seed, "neighbours": self.neighbours}
            self._adopt(replace(saved, settings=settings), where="the pretrained model")
        if isinstance(self._waiting, Saved):
            self._take_over(self._waiting)  # loaded before it knew the environment

    def execution(self, number: int) -> tuple[str, Outcome]:
        """The code and the outcome (a batch of one) of an execution that ``info["neighbour"]`` names.

        Raises:
            KeyError: it is not kept.
        """
        evidence = self._learnt.evidence
        rows = np.flatnonzero(evidence.number == number) if evidence is not None else np.zeros(0, np.int64)
        if evidence is None or not len(rows):
            raise KeyError(f"execution {number} is not kept")
        return str(evidence.text[rows[0]]), batch.take(evidence.outcome, rows)

    def chances(self, attempt: Any) -> NDArray[np.float64]:
        """Calibrated probability of each status, where the gate does not answer: float64, shape (B, S), rows summing to 1."""
        known = self._learnt.fit
        features, text = self._features(attempt), self.factored.text(attempt)
        if known is None:
            return self._chances(features)
        return known.calibration(self._chances(encode(known.encoder, features, text)))

    def predict_outcomes(
        self, attempt: Any, context: NDArray[np.int64], *, seed: NDArray[np.int64], rng: np.random.Generator
    ) -> PredictedOutcomes:
        known, features = self._learnt.fit, self._features(attempt)
        x = features if known is None else encode(known.encoder, features, self.factored.text(attempt))
        chances = self._chances(x)
        outcome, std = self._expect(x, chances)
        if self.sample:
            outcome = self._draw(outcome, std, chances, seed)
        text = self.factored.shows_text
        count = (_SHOWN if text else 0) if self.neighbours is None else self.neighbours
        info: dict[str, NDArray[Any]] = {}
        if count or (text and known is not None):
            distance = np.zeros((len(x), 0)) if known is None else known.distances(x)
            info = nearest_executions(self._learnt.evidence, distance, count) if count else {}
            outcome = replace(outcome, feedback=nearest_feedback(self._learnt.evidence, outcome, distance)) if text else outcome
        gated = self._gated(attempt, PredictedOutcomes(outcome, std, info))
        return replace(gated, outcome=self.factored.describe(attempt, gated.outcome)) if text else gated

    def held_out_outcomes(self, attempt: Any, context: NDArray[np.int64]) -> PredictedOutcomes | None:
        """What the trees say that did not see an execution; of one repeated often, those that saw its other executions."""
        known = self._learnt.fit
        if known is None or self._learnt.evidence is None or self.sample:
            return None
        evidence = batch.take(self._learnt.evidence, np.arange(self._learnt.fitted))  # later ones no tree has seen
        features, text = self._features(attempt), self.factored.text(attempt)
        x = encode(known.encoder, features, text)
        chances, (mean, variance) = self._chances(x), self._open_values(x)
        scored = self._open[evidence.outcome.status]
        place = np.cumsum(scored) - 1
        for row, same in enumerate(evidence.rows_like(features, text)):
            unseen = same[np.isfinite(known.chances.held_out_mean[same]).all(axis=1)]
            if len(unseen):
                chances[row] = known.chances.held_out_mean[unseen].mean(axis=0)
            worth = same[scored[same]]
            if known.value is not None and len(worth):
                said = known.value.held_out_mean[place[worth], 0]
                if np.isfinite(said).any():
                    mean[row] = np.nanmean(said)
        outcome, std = self._expect(x, chances, open_value=(mean, variance))
        return self._gated(attempt, PredictedOutcomes(outcome, std))

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        return self.apply_update(self.compute_update(transitions, rng))

    def compute_update(self, transitions: Transitions, rng: np.random.Generator) -> Knowledge:
        if transitions.attempt is None or transitions.outcome is None:
            raise WorldModelError("OutcomeModel learns from transitions that hold attempts and outcomes; these hold none")
        gated, _ = self.factored.gate(transitions.attempt)
        usable = transitions.outcome.known & ~gated
        if not usable.any():
            return self._learnt
        attempt = batch.take(transitions.attempt, usable)
        text = objects(list(self.factored.text(attempt)))
        before = self._learnt
        number = before.executions + np.arange(len(text), dtype=np.int64)
        outcome = batch.take(transitions.outcome, usable)
        evidence = Evidence(self._features(attempt), text, transitions.context[usable], outcome, number)
        executions = before.executions + len(text)
        if before.evidence is not None:
            evidence = batch.concatenate([before.evidence, evidence])
        elif len(text) > self.capacity:
            evidence = batch.take(evidence, np.arange(len(text) - self.capacity, len(text)))
        if before.fit is not None and len(evidence.text) - before.fitted < self._enough(before):
            return Knowledge(evidence, executions, before.fit, before.fitted)
        # Only now: the rows of the last fit must stay where they are as long as it answers.
        evidence = evidence.thinned(self.capacity, seed=self.seed)
        fitted = self._fitted_on(evidence)
        return Knowledge(evidence, executions, fitted, 0 if fitted is None else len(evidence.text))

    def apply_update(self, computed: Any) -> dict[str, float]:
        self._learnt = computed
        known = self._learnt.fit
        return {"wm/executions": float(self.executions), **({} if known is None else known.measures)}

    def _enough(self, before: Knowledge) -> float:
        """How many new executions call for another fit: of a model that came fitted, as a share of its own ones."""
        if self._transfer is None or before.evidence is None:
            return self.refit_share * before.fitted
        own = int((before.evidence.number[: before.fitted] >= self._transfer.executions).sum())
        return min(self.refit_share, 1.0) * max(own, self.min_executions)

    def _fitted_on(self, evidence: Evidence) -> Fit | None:
        if len(evidence.text) < self.min_executions:
            return None
        growth = Growth(self.n_trees, self.seed, self.min_leaf, self.max_features)
        transfer, judged_from = self._transfer, 0
        if transfer is not None and (evidence.number >= transfer.executions).sum() >= FEW:
            judged_from, transfer = transfer.executions, None
        found = fit(
            evidence,
            self._stages,
            encoder=self.encoder,
            growth=growth,
            min_executions=self.min_executions,
            judged_from=judged_from,
        )
        if transfer is None:
            return found
        # Rows of tasks that it knows say nothing of its doubt about others.
        calibration = StatusCalibration(transfer.temperature, transfer.mixing, found.calibration.base)
        return replace(found, noise=transfer.noise, slope=transfer.slope, calibration=calibration)

    def _features(self, attempt: Any) -> NDArray[np.float32]:
        """What the model may know of each attempt before it runs, but for its text: float32, shape (B, F)."""
        features = self.factored.features(attempt)
        return np.hstack([features, self.factored.descriptors(attempt)]) if self.descriptors else features

    def _open_values(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the value where the status leaves it open, float64, shape (B,) each."""
        known = self._learnt.fit
        if known is None or known.value is None:
            return self._stages.guess(len(x))
        predicted, spread = known.value.predict(x)
        return predicted[:, 0], spread[:, 0]

    def _expect(
        self,
        x: NDArray[np.float32],
        chances: NDArray[np.float64],
        *,
        open_value: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None,
    ) -> tuple[Outcome, NDArray[np.float64]]:
        """Expected outcomes, and the standard deviation of their values' errors."""
        n, known = len(x), self._learnt.fit
        open_mean, open_variance = self._open_values(x) if open_value is None else open_value
        mean, variance = self._stages.mix(chances, open_mean, open_variance)
        std = np.full(n, np.nan) if known is None else np.sqrt(known.noise + known.slope * variance)
        status = chances.argmax(axis=1)
        shown = np.where(self._open[status], open_mean, self._fixed[status])
        feedback = np.full(n, "", dtype=object)
        return Outcome(status, mean, shown, feedback, np.ones(n, bool), np.zeros(n), np.zeros(n)), std

    def _chances(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        known = self._learnt.fit
        if known is None:
            # Nothing is known: the status whose value varies, the only one that is informative to try.
            return np.tile(self._open / self._open.sum(), (len(x), 1))
        return known.chances.mean(x)

    def _draw(self, outcome: Outcome, std: NDArray[np.float64], chances: NDArray[np.float64], seed: NDArray[np.int64]) -> Outcome:
        """One outcome from each distribution: a status, and a value of that status. Each rollout draws by its own seed."""
        cumulative = chances.cumsum(axis=1)
        first, second = _uniform(seed), _uniform(seed + 2**31)
        status = np.minimum((first[:, None] * cumulative[:, -1:] > cumulative).sum(axis=1), chances.shape[1] - 1)
        noise = np.nan_to_num(std, nan=PRIOR_STD) * ndtri(second)
        low, high = self.factored.reward_range
        value = np.where(self._open[status], np.clip(outcome.shown + noise, low, high), self._fixed[status])
        return replace(outcome, status=status, value=value, shown=value)

    def save(self, path: str | Path) -> None:
        """Write the evidence; the trees grow again from it, the same ones, when it is loaded."""
        evidence, columns = self.evidence, self.factored.context_columns
        saved = Saved(
            {name: getattr(self, name) for name in SETTINGS},
            self.encoder.settings(),
            self.executions,
            self._learnt.fitted,
            self.span.as_json(),
            tuple(self.factored.statuses),
            tuple(self.factored.contexts),
            None if columns is None else (columns.start, columns.stop),
            evidence,
            None if evidence is None else self.encoder.remembered(evidence.text.tolist()),
            self._transfer,
        )
        saved.write(Path(path))

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote, settings included.

        The environment may have other contexts than the one that the model was trained in: what it knows of each is kept by name.

        Raises:
            WorldModelError: the folder holds no such model, or one that other features or another network made.
        """
        self._adopt(Saved.read(Path(path)), where=f"the model in {path}")
        if self.interface is not None and isinstance(self._waiting, Saved):
            self._take_over(self._waiting)

    def _adopt(self, saved: Saved, *, where: str) -> None:
        """Take the settings of what was saved, which waits until the environment is known."""
        self.encoder = saved.encoder_like(self.encoder)
        try:
            like = OutcomeModel(encoder=self.encoder, **saved.settings)
        except (TypeError, ValueError) as error:
            raise WorldModelError(f"{where} has settings that no OutcomeModel has: {error}") from error
        for name in saved.settings:
            setattr(self, name, getattr(like, name))
        self._learnt, self._waiting, self._transfer = Knowledge(None, saved.executions, None), saved, saved.transfer

    def _take_over(self, saved: Saved) -> None:
        evidence = saved.evidence_for(self.factored)
        rows = saved.fitted if evidence is not None else 0
        fitted = self._fitted_on(batch.take(evidence, np.arange(rows))) if evidence is not None else None
        self._learnt = Knowledge(evidence, saved.executions, fitted, 0 if fitted is None else rows)
        self._waiting = None


def _uniform(seed: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number strictly between 0 and 1 for each seed, float64, shape (B,)."""
    return (draw(seed, 2**52) + 0.5) / 2**52
