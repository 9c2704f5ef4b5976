"""The methods that the study compares, with their learning rates.

Rates were tuned for each method on seeds 100 to 115 over all bias kinds (``python -m benchmarks.corrections --tune``); the table
is on other seeds.
"""

from __future__ import annotations

from benchmarks.corrections_study.contextual import ContextualAdaptive, ContextualResidual
from benchmarks.corrections_study.fused import AdaptiveReward, Fused
from benchmarks.corrections_study.methods import (
    FRACTION,
    Entry,
    ModelAlone,
    RealEpisodes,
    RealFull,
    RealGroups,
    Replace,
    Residual,
)

RATES = (0.01, 0.02, 0.03, 0.04)

METHODS: tuple[Entry, ...] = (
    Entry("real only, full budget", RealFull, 0.03, False),
    Entry("real only, groups", RealGroups, 0.03, False),
    Entry("real only, episodes", RealEpisodes, 0.03, False),
    Entry("world model alone", ModelAlone, 0.04),
    Entry("mixture", lambda s: Replace(s, debias=False, weight=1.0), 0.04),
    Entry("denoise only", lambda s: Replace(s, debias=False, weight="paper"), 0.02),
    Entry("debias only", lambda s: Replace(s, debias=True, weight=1.0), 0.02),
    Entry("paper", lambda s: Replace(s, debias=True, weight="paper"), 0.02),
    Entry("residual reward", lambda s: Residual(s, scale="centre"), 0.03),
    Entry("residual reward, adaptive", AdaptiveReward, 0.03),
    Entry("recommended", Residual, 0.02),
    Entry("adaptive", Fused, 0.02),
    Entry("contextual", lambda s: ContextualResidual(s, kappa=FRACTION), 0.02),
    Entry("contextual + residual", ContextualResidual, 0.02),
    Entry("contextual, adaptive", ContextualAdaptive, 0.02),
)
