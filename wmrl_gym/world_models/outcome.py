"""A world model of factored environments: predicts the outcome of an attempt, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from wmrl_gym import batch
from wmrl_gym.data.transitions import Transitions
from wmrl_gym.factored import Factored, Outcome
from wmrl_gym.world_models.base import Interface, PairKind, Prediction, WorldModel, WorldModelError
from wmrl_gym.world_models.forest import BaggedTrees

TextEncoder = Literal["tfidf", "none"]
_PRIOR_STD = 0.3
"""Standard deviation, as a share of the reward's range, that an unfitted or hardly fitted model admits to."""


@dataclass(frozen=True, slots=True)
class OutcomeState:
    """State of B rollouts.

    Args:
        inner: the environment's own bookkeeping.
        best: float64, shape (B,). The highest value among the rollout's attempts so far; -inf before the first.
        best_std: float64, shape (B,). Standard deviation of the error of that value.
    """

    inner: Any
    best: NDArray[np.float64]
    best_std: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Executed attempts, the training data: features float32 (N, F), the code, and the outcome."""

    features: NDArray[np.float32]
    text: NDArray[np.object_]
    context: NDArray[np.int64]
    outcome: Outcome


class OutcomeModel(WorldModel):
    """Learns (task, attempt) -> status, value and how sure it is of that, from real executions.

    Two stages (the value of code that runs and the chance that it runs have different causes): a forest over the statuses,
    and one over the value of the attempts whose status leaves it open. The predicted value is the expectation over both. What
    needs no execution, such as a syntax error, is answered exactly by the environment's own gate.

    Args:
        n_trees: trees in each forest.
        min_executions: real executions before the first fit; until then :attr:`fitted` is False.
        text_encoder: ``"tfidf"`` adds word and punctuation n-grams of the attempt's code to the environment's own features.
        capacity: newest executions kept for training.
        sample: draw one outcome from the predicted distribution instead of its expectation.
        seed: of the forests.

    Raises:
        ValueError: an argument out of range.
    """

    pairs: ClassVar[PairKind] = "open_loop"

    def __init__(
        self,
        n_trees: int = 48,
        *,
        min_executions: int = 8,
        text_encoder: TextEncoder = "tfidf",
        capacity: int = 4096,
        sample: bool = False,
        seed: int = 0,
    ) -> None:
        if n_trees < 2:
            raise ValueError(f"n_trees must be at least 2, since their spread is the uncertainty, got {n_trees}")
        if min_executions < 2:
            raise ValueError(f"min_executions must be at least 2, got {min_executions}")
        if text_encoder not in ("tfidf", "none"):
            raise ValueError(f'text_encoder must be "tfidf" or "none", got {text_encoder!r}')
        self.n_trees = n_trees
        self.min_executions = min_executions
        self.text_encoder = text_encoder
        self.capacity = capacity
        self.sample = sample
        self.seed = seed
        self.executions = 0
        self._evidence: Evidence | None = None
        self._vectorizer: Any = None
        self._status_trees: BaggedTrees | None = None
        self._value_trees: BaggedTrees | None = None
        self._variance_fit = (0.0, 1.0)

    @property
    def factored(self) -> Factored[Any, Any]:
        """The environment's bookkeeping.

        Raises:
            WorldModelError: not bound yet, or bound to an environment that is not factored.
        """
        if self.interface is None:
            raise WorldModelError("OutcomeModel is not bound to an environment: wrap one in WorldModelWrapper, or call bind()")
        if self.interface.factored is None:
            raise WorldModelError(
                "OutcomeModel predicts the outcomes of factored environments (those with a `factored` attribute, such as "
                "wmrl/AutoResearch-v0); this environment is not one, so it needs a dynamics model"
            )
        return self.interface.factored

    def bind(self, interface: Interface) -> None:
        super().bind(interface)
        statuses = self.factored.statuses
        self._fixed = np.asarray(self.factored.status_values, np.float64)
        self._open = np.isnan(self._fixed)
        if len(statuses) != len(self._fixed):
            raise WorldModelError(f"{len(statuses)} statuses but {len(self._fixed)} status_values")
        if self._evidence is not None and not self.fitted:
            self._fit()  # loaded before it knew the environment

    @property
    def fitted(self) -> bool:
        return self._status_trees is not None

    def begin(self, observation: Any, info: Mapping[str, NDArray[Any]], rng: np.random.Generator) -> OutcomeState:
        inner = self.factored.begin(observation, info)
        n = len(info["context"])
        return OutcomeState(inner, np.full(n, -np.inf), np.full(n, np.nan))

    def step(self, state: OutcomeState, action: Any, rng: np.random.Generator) -> tuple[OutcomeState, Prediction]:
        attempt = self.factored.attempt(state.inner, action)
        outcome, std = self.predict(attempt, rng)
        inner, step = self.factored.advance(state.inner, attempt, outcome)
        better = outcome.value > state.best
        best_std = np.where(better, std, state.best_std)
        after = OutcomeState(inner, np.where(better, outcome.value, state.best), best_std)
        info = {**step.info, "predicted_status": outcome.status}
        return after, Prediction(
            step.observation,
            step.reward,
            np.where(step.reward_due, best_std, np.nan),
            step.terminated,
            step.truncated,
            step.reward_due,
            step.reward_valid,
            info,
        )

    def predict(self, attempt: Any, rng: np.random.Generator) -> tuple[Outcome, NDArray[np.float64]]:
        """The outcomes of a batch of attempts.

        Returns:
            The outcomes (their value an expectation unless ``sample``), and the standard deviation of the value's error,
            float64, shape (B,): 0 where the gate answered, NaN before the first fit.
        """
        x = self._encode(self.factored.features(attempt), self.factored.text(attempt))
        outcome, std = self._expect(x)
        if self.sample:
            outcome = self._draw(outcome, std, self._chances(x), rng)
        if self.factored.shows_text and self.fitted:
            outcome = replace(outcome, feedback=self._nearest_feedback(outcome, x))
        gated, exact = self.factored.gate(attempt)
        if gated.any():
            outcome = batch.put(outcome, gated, batch.take(exact, gated))
            std = np.where(gated, 0.0, std)
        return (self.factored.describe(attempt, outcome) if self.factored.shows_text else outcome), std

    def update(self, transitions: Transitions, rng: np.random.Generator) -> dict[str, float]:
        if transitions.attempt is None or transitions.outcome is None:
            raise WorldModelError("OutcomeModel learns from transitions that hold attempts and outcomes; these hold none")
        gated, _ = self.factored.gate(transitions.attempt)
        usable = transitions.outcome.known & ~gated
        attempt = batch.take(transitions.attempt, usable)
        text = _objects(list(self.factored.text(attempt)))
        outcome = batch.take(transitions.outcome, usable)
        new = Evidence(self.factored.features(attempt), text, transitions.context[usable], outcome)
        self.executions += len(text)
        evidence = new if self._evidence is None else batch.concatenate([self._evidence, new])
        kept = np.arange(max(0, len(evidence.text) - self.capacity), len(evidence.text))
        self._evidence = batch.take(evidence, kept)
        return self._fit()

    def _fit(self) -> dict[str, float]:
        evidence = self._evidence
        if evidence is None or len(evidence.text) < self.min_executions:
            return {"wm/executions": float(self.executions)}
        self._vectorizer = self._fit_vectorizer(evidence.text)
        x = self._encode(evidence.features, evidence.text.tolist())
        span = np.ptp(x, axis=0)
        self._known_x = (x, np.where(span == 0, 1.0, span).astype(np.float32))
        status, value = evidence.outcome.status, evidence.outcome.value
        self._status_trees = BaggedTrees(self.n_trees, seed=self.seed).fit(x, np.eye(len(self._fixed))[status])
        scored = self._open[status]
        self._value_trees = None
        if scored.sum() >= 2:
            self._value_trees = BaggedTrees(self.n_trees, seed=self.seed + 1).fit(x[scored], value[scored])
        return {"wm/executions": float(self.executions), **self._calibrate_variance(x, status, value)}

    def _calibrate_variance(
        self, x: NDArray[np.float32], status: NDArray[np.int64], value: NDArray[np.float64]
    ) -> dict[str, float]:
        """Fit ``error^2 ~ a + b * variance`` on what the trees that never saw a row say of it: unexplained noise, and a scale."""
        assert self._status_trees is not None
        open_mean, open_variance = self._open_value(x)
        if self._value_trees is not None:
            scored = self._open[status]
            open_mean[scored] = self._value_trees.held_out_mean[:, 0]
            open_variance[scored] = self._value_trees.held_out_variance[:, 0]
        mean, variance = self._mix(self._status_trees.held_out_mean, open_mean, open_variance)
        honest = np.isfinite(mean) & np.isfinite(variance)
        if honest.sum() < self.min_executions:
            self._variance_fit = (_PRIOR_STD**2, 0.0)
            return {}
        error2 = (value - mean)[honest] ** 2
        noise, slope = nnls(np.stack([np.ones(len(error2)), variance[honest]], axis=1), error2)[0]
        self._variance_fit = (float(noise), float(slope))
        spread = float(np.var(value[honest]))
        return {
            "wm/held_out_rmse": float(np.sqrt(error2.mean())),
            "wm/held_out_r2": 1.0 - float(error2.mean()) / spread if spread > 0 else float("nan"),
        }

    def _expect(self, x: NDArray[np.float32]) -> tuple[Outcome, NDArray[np.float64]]:
        """Expected outcomes, and the standard deviation of their values' errors."""
        n = len(x)
        chances = self._chances(x)
        open_mean, open_variance = self._open_value(x)
        mean, variance = self._mix(chances, open_mean, open_variance)
        noise, slope = self._variance_fit
        std = np.sqrt(noise + slope * variance) if self.fitted else np.full(n, np.nan)
        status = chances.argmax(axis=1)
        shown = np.where(self._open[status], open_mean, self._fixed[status])
        feedback = np.full(n, "", dtype=object)
        return Outcome(status, mean, shown, feedback, np.ones(n, bool), np.zeros(n), np.zeros(n)), std

    def _chances(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Probability of each status: float64, shape (B, S), rows summing to 1."""
        if self._status_trees is None:
            # Nothing is known: the status whose value varies, the only one that is informative to try.
            return np.tile(self._open / self._open.sum(), (len(x), 1))
        return self._status_trees.predict(x)[0]

    def _open_value(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the value where the status leaves it open, each float64, shape (B,)."""
        if self._value_trees is None:
            low, high = self.factored.reward_range
            middle = (max([low, *self._fixed[~self._open]]) + high) / 2
            return np.full(len(x), middle), np.full(len(x), _PRIOR_STD**2)
        mean, variance = self._value_trees.predict(x)
        return mean[:, 0], variance[:, 0]

    def _mix(
        self, chances: NDArray[np.float64], open_mean: NDArray[np.float64], open_variance: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of the value over statuses, each float64, shape (B,)."""
        values = np.where(self._open, open_mean[:, None], self._fixed)
        mean = (chances * values).sum(axis=1)
        between = (chances * (values - mean[:, None]) ** 2).sum(axis=1)
        return mean, between + (chances * self._open).sum(axis=1) * open_variance

    def _draw(
        self, outcome: Outcome, std: NDArray[np.float64], chances: NDArray[np.float64], rng: np.random.Generator
    ) -> Outcome:
        """One outcome from each distribution: a status, and a value of that status."""
        cumulative = chances.cumsum(axis=1)
        status = np.minimum((rng.random((len(chances), 1)) * cumulative[:, -1:] > cumulative).sum(axis=1), chances.shape[1] - 1)
        noise = np.nan_to_num(std, nan=_PRIOR_STD) * rng.standard_normal(len(chances))
        low, high = self.factored.reward_range
        value = np.where(self._open[status], np.clip(outcome.shown + noise, low, high), self._fixed[status])
        return replace(outcome, status=status, value=value, shown=value)

    def _nearest_feedback(self, outcome: Outcome, x: NDArray[np.float32]) -> NDArray[np.object_]:
        """What the most similar executed attempt with the predicted status was told; "" where there is none."""
        evidence = self._evidence
        assert evidence is not None
        known, scale = self._known_x
        feedback = np.full(len(x), "", dtype=object)
        for row, status in enumerate(outcome.status):
            alike = np.flatnonzero(evidence.outcome.status == status)
            if len(alike):
                distance = np.abs((known[alike] - x[row]) / scale).sum(axis=1)
                feedback[row] = evidence.outcome.feedback[alike[distance.argmin()]]
        return feedback

    def _fit_vectorizer(self, text: NDArray[np.object_]) -> Any:
        if self.text_encoder == "none" or not any(text):
            return None
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(token_pattern=r"[A-Za-z_]\w+", ngram_range=(1, 2), max_features=400, sublinear_tf=True)
        try:
            return vectorizer.fit(text)
        except ValueError:  # not one word in all that was executed
            return None

    def _encode(self, features: NDArray[np.float32], text: Sequence[str]) -> NDArray[np.float32]:
        """Features, and the code's words once a vocabulary is known: float32, shape (B, F + W)."""
        if self._vectorizer is None:
            return features
        return np.hstack([features, self._vectorizer.transform(text).toarray().astype(np.float32)])

    def save(self, path: str | Path) -> None:
        """Write the evidence; the trees grow again from it, the same ones, when it is loaded."""
        from safetensors.numpy import save_file

        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {name: getattr(self, name) for name in _SETTINGS}
        document: dict[str, Any] = {"model": type(self).__name__, "settings": settings, "executions": self.executions}
        if self._evidence is not None:
            outcome = self._evidence.outcome
            arrays = {name: np.ascontiguousarray(getattr(outcome, name)) for name in _OUTCOME_ARRAYS}
            arrays |= {"features": np.ascontiguousarray(self._evidence.features), "context": self._evidence.context}
            save_file(arrays, str(folder / "evidence.safetensors"))
            document |= {"text": list(self._evidence.text), "feedback": list(outcome.feedback)}
        (folder / "outcome_model.json").write_text(json.dumps(document), encoding="utf-8")

    def load(self, path: str | Path) -> None:
        """Read what :meth:`save` wrote, settings included.

        Raises:
            WorldModelError: the folder holds no such model.
        """
        from safetensors.numpy import load_file

        folder = Path(path)
        document_path = folder / "outcome_model.json"
        if not document_path.is_file():
            raise WorldModelError(f"no OutcomeModel is saved in {folder}: {document_path.name} is missing")
        document = json.loads(document_path.read_text(encoding="utf-8"))
        for name in _SETTINGS:
            setattr(self, name, document["settings"][name])
        self.executions = document["executions"]
        self._evidence = self._status_trees = self._value_trees = None
        if "text" in document:
            arrays = load_file(str(folder / "evidence.safetensors"))
            outcome = Outcome(**{name: arrays[name] for name in _OUTCOME_ARRAYS}, feedback=_objects(document["feedback"]))
            self._evidence = Evidence(arrays["features"], _objects(document["text"]), arrays["context"], outcome)
            if self.interface is not None:
                self._fit()


_SETTINGS = ("n_trees", "min_executions", "text_encoder", "capacity", "sample", "seed")
_OUTCOME_ARRAYS = ("status", "value", "shown", "known", "cpu_s", "wall_s")


def _objects(items: Sequence[str]) -> NDArray[np.object_]:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
