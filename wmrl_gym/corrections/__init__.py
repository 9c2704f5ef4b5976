"""The mathematics of learning from predicted rewards that a few real executions keep honest; numpy and scipy only."""

from wmrl_gym.corrections.advantages import Advantages, anchored_rloo, dr_grpo, grpo, residual_advantages, rloo
from wmrl_gym.corrections.anchor_pairs import PairWindow
from wmrl_gym.corrections.anchors import AnchorDecision, AnchorSchedule
from wmrl_gym.corrections.bias_evidence import ActionSigns, AdaptiveKappa
from wmrl_gym.corrections.calibration import BinnedIsotonic, Calibrator
from wmrl_gym.corrections.contexts import ChangeDetector, Forgetful, PerContext
from wmrl_gym.corrections.contextual import ContextualCalibration
from wmrl_gym.corrections.denoising import AnchorWeight, Fusion, fuse_samples, fuse_variances, shrink
from wmrl_gym.corrections.fusion import FusedAdvantages, StreamWeights, fuse_streams
from wmrl_gym.corrections.gradient import GradientFusion, RewardFusion, mean_variance
from wmrl_gym.corrections.guard import Judgement, RewardGuard
from wmrl_gym.corrections.measures import PairMeasures
from wmrl_gym.corrections.online_calibration import OnlineCalibration
from wmrl_gym.corrections.residual import ResidualVariance, graded_anchors, residual_reward
from wmrl_gym.corrections.schedules import (
    AdaptiveSchedule,
    BudgetSchedule,
    EpisodeStart,
    OneRealSlot,
    RecordedSchedule,
    UncertaintySchedule,
)
from wmrl_gym.corrections.shrinkage import RewardShrinkage
from wmrl_gym.corrections.smooth import SmoothMonotone

__all__ = [
    "ActionSigns",
    "AdaptiveKappa",
    "AdaptiveSchedule",
    "Advantages",
    "AnchorDecision",
    "AnchorSchedule",
    "AnchorWeight",
    "BinnedIsotonic",
    "BudgetSchedule",
    "Calibrator",
    "ChangeDetector",
    "ContextualCalibration",
    "EpisodeStart",
    "Forgetful",
    "FusedAdvantages",
    "Fusion",
    "GradientFusion",
    "Judgement",
    "OneRealSlot",
    "OnlineCalibration",
    "PairMeasures",
    "PairWindow",
    "PerContext",
    "RecordedSchedule",
    "ResidualVariance",
    "RewardFusion",
    "RewardGuard",
    "RewardShrinkage",
    "SmoothMonotone",
    "StreamWeights",
    "UncertaintySchedule",
    "anchored_rloo",
    "dr_grpo",
    "fuse_samples",
    "fuse_streams",
    "fuse_variances",
    "graded_anchors",
    "grpo",
    "mean_variance",
    "residual_advantages",
    "residual_reward",
    "rloo",
    "shrink",
]
