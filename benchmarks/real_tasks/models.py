"""World models of the study: what they know before a run, and predictions that are computed once for each fit."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real_tasks.designs import COUNT, Executed, ExecutedDesigns, every_design, number_of, recorded
from benchmarks.real_tasks.settings import SETTINGS
from wmrl_gym import batch
from wmrl_gym.envs.autoresearch import AutoResearchDesign
from wmrl_gym.envs.autoresearch.design_env import DesignAttempt
from wmrl_gym.world_models import Interface, OutcomeModel
from wmrl_gym.world_models.attempts import PredictedOutcomes


class TabulatedModel(OutcomeModel):
    """An outcome model of one task's 225 designs, which computes all predictions of a fit at once and looks them up.

    They are the same numbers: without drawing, a prediction depends on nothing but the design and the fit.
    """

    _of: Any = None
    _all: PredictedOutcomes

    def predict_outcomes(
        self, attempt: Any, context: NDArray[np.int64], *, seed: NDArray[np.int64], rng: np.random.Generator
    ) -> PredictedOutcomes:
        if self._of is not self._learnt:
            every = DesignAttempt(np.zeros(COUNT, np.int64), every_design())
            none = np.zeros(COUNT, np.int64)
            self._all, self._of = super().predict_outcomes(every, none, seed=none, rng=rng), self._learnt
        return batch.take(self._all, number_of(attempt))


def bound(model: OutcomeModel, env: AutoResearchDesign) -> OutcomeModel:
    """``model``, told which environment it predicts."""
    model.bind(Interface(env.observation_space, env.action_space, env.reward_range, env))
    return model


class Models:
    """Gives each run its world models.

    Args:
        tables: what was executed, by task.
    """

    def __init__(self, tables: Mapping[str, Executed]) -> None:
        self.tables = tables
        self._sources: dict[tuple[str, bool], ExecutedDesigns] = {}
        self._as_shipped: dict[str, OutcomeModel] = {}
        self._pretrained = {task: self._elsewhere(task) for task in tables}

    def source(self, task: str, *, at_once: bool) -> ExecutedDesigns:
        """A task as an environment that has executed nothing yet; made once, since reading a task's data takes long."""
        if (task, at_once) not in self._sources:
            self._sources[task, at_once] = ExecutedDesigns(self.tables[task], at_once=at_once)
        made = self._sources[task, at_once]
        made.asked = 0
        return made

    def fresh(self, task: str, setting: str, *, seed: int) -> OutcomeModel:
        """The world model of a run on a task: one that nothing else changes."""
        chosen = SETTINGS[setting]
        if not chosen.pretrained:
            return TabulatedModel(encoder="none", seed=seed, n_trees=24)
        known = self._shipped(task) if chosen.shipped else self._pretrained[task]
        if not chosen.learns:
            return known
        own = TabulatedModel(
            n_trees=24,
            encoder="none",
            descriptors=True,
            seed=seed,
            refit_share=chosen.refit_share,
            capacity=chosen.capacity,
        )
        bound(own, self.source(task, at_once=False))
        own.apply_update(known._learnt)
        return own

    def _shipped(self, task: str) -> OutcomeModel:
        """The model that comes with the package, on a task that it has not seen."""
        if task not in self._as_shipped:
            self._as_shipped[task] = bound(TabulatedModel.pretrained(), self.source(task, at_once=False))
        return self._as_shipped[task]

    def predictions(self, task: str) -> NDArray[np.float64]:
        """What the pretrained model says of every design: float64, shape (225,)."""
        every = DesignAttempt(np.zeros(COUNT, np.int64), every_design())
        return self._pretrained[task].predict(every, np.random.default_rng(0))[0].value

    def _elsewhere(self, task: str) -> OutcomeModel:
        """A model that knows the tables of all other tasks."""
        env = AutoResearchDesign([other for other in self.tables if other != task], max_turns=1)
        there = bound(OutcomeModel(encoder="none", descriptors=True), env)
        there.update(recorded(env, self.tables), np.random.default_rng(0))
        here = bound(TabulatedModel(encoder="none"), self.source(task, at_once=False))
        with tempfile.TemporaryDirectory() as folder:
            there.save(folder)
            here.load(folder)
        return here
