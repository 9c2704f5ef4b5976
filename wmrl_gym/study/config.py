"""What a comparison compares: arms that train the same policy on the same tasks for the same wall-clock time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wmrl_gym.envs.autoresearch import HELD_OUT_TASKS
from wmrl_gym.study.settings import SECONDS, ArmSettings, tuned

ArmName = Literal["real", "model", "mixture", "denoise", "debias", "paper", "recommended", "smooth", "contextual", "adaptive"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train.

    Args:
        name: its short name, that of its files.
        title: its name in tables and plots.
        colour: in plots.
        what: one sentence.
    """

    name: ArmName
    title: str
    colour: str
    what: str


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("real", "real execution", "#444444", "every step is executed"),
        Arm("model", "world model alone", "#d62728", "imagined only; from scratch it is fitted on random executions first"),
        Arm("mixture", "plain mixture", "#9467bd", "imagined and real episodes side by side, uncorrected"),
        Arm("denoise", "denoising only", "#8c564b", "the paper's inverse-variance weights on group anchors, no debiasing"),
        Arm("debias", "debiasing only", "#ff7f0e", "the paper's online debiasing on group anchors, no weights"),
        Arm("paper", "WMRL, paper", "#1f77b4", "online debiasing and inverse-variance weights on group anchors"),
        Arm("recommended", "WMRL, recommended", "#2ca02c", "contextual calibration and residual correction on episode anchors"),
        Arm("smooth", "WMRL, smooth", "#bcbd22", "as recommended, with the smooth calibration alone"),
        Arm("contextual", "WMRL, contextual", "#98df8a", "what recommended chooses here, by its own name"),
        Arm("adaptive", "WMRL, adaptive", "#17becf", "as smooth, with kappa adapted online"),
    )
}

PPO_SETTINGS: dict[str, Any] = {
    "n_steps": 3,
    "batch_size": 384,
    "n_epochs": 4,
    "learning_rate": 3e-3,
    "gamma": 1.0,
    "gae_lambda": 1.0,
    "ent_coef": 0.01,
    "clip_range": 0.2,
    "policy_kwargs": {"net_arch": [64, 64], "optimizer_kwargs": {"eps": 1e-5, "fused": True}},
}
"""The same in every arm, but for what :mod:`~wmrl_gym.study.settings` sets; ``n_steps`` is one episode."""


STUDY_TASKS = (
    "abalone",
    "bbc-news",
    "breast-cancer",
    "cars-mpg",
    "diabetes",
    "digits",
    "happiness",
    "seattle-weather",
)
"""The tasks of a comparison from scratch, unless others are named: as many as minutes of training suffice for."""


@dataclass(frozen=True, slots=True)
class StudyConfig:
    """A comparison.

    Args:
        arms: names of the arms.
        tasks: names of the tasks; None is the eight that are held out, or from scratch :data:`STUDY_TASKS`.
        seconds: wall-clock seconds of training for each arm, its warm-up included.
        seed: of everything.
        num_envs: from scratch: environments that are imagined at once, in the arms that imagine.
        real_envs: from scratch: environments in the arm that only executes: its rollouts must fit into the time.
        workers: executions at once, in every arm.
        anchors: from scratch: share of anchors in the arms that have any.
        max_in_flight: from scratch: anchor episodes that wait or run; training waits before it starts one more, so that none
            grows stale.
        max_gain: most weight of an anchor's residual, of which there is about one a rollout.
        warmup: from scratch: random executions before an arm with anchors imagines anything; paid from its seconds, a fifth of
            them at most.
        pretrained: whether arms that imagine begin with the model that comes with the package, which knows other tasks, and
            then execute nothing beforehand; the arm "model" executes nothing at all. Else all learn from scratch.
        settings: by arm, in the place of the tuned ones; with the pretrained model only.
        snapshots: policies kept on the way, for learning curves.
        curve_episodes: evaluation episodes a task for each snapshot.
        final_episodes: evaluation episodes a task for each final policy.

    Raises:
        ValueError: an argument out of range.
    """

    arms: tuple[str, ...] = ("real", "model", "mixture", "recommended")
    tasks: tuple[str, ...] | None = None
    seconds: float = 35.0
    seed: int = 0
    num_envs: int = 128
    real_envs: int = 16
    workers: int = 2
    anchors: float = 0.0015
    max_in_flight: int = 8
    max_gain: float = 2.0
    warmup: int = 48
    pretrained: bool = True
    settings: dict[str, ArmSettings] = field(default_factory=dict)
    snapshots: int = 4
    curve_episodes: int = 1
    final_episodes: int = 3
    ppo: dict[str, Any] = field(default_factory=lambda: dict(PPO_SETTINGS))

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tasks."""
        if self.tasks is not None:
            return self.tasks
        return HELD_OUT_TASKS if self.pretrained else STUDY_TASKS

    def settings_of(self, arm: str) -> ArmSettings:
        """What is set for an arm; anchors and rollouts are as many as its seconds have room for, whole groups of eight."""
        if not self.pretrained:
            count = self.real_envs if arm == "real" else self.num_envs
            rate, entropy, epochs = (self.ppo[name] for name in ("learning_rate", "ent_coef", "n_epochs"))
            return ArmSettings(rate, entropy, epochs, count, learns=12, max_in_flight=self.max_in_flight)
        chosen = self.settings.get(arm) or tuned(arm)
        part = self.seconds / SECONDS
        rollouts = max(1, round(chosen.rollouts * part))
        anchors = min(8 * round(chosen.anchors * part / 8), chosen.num_envs * rollouts)
        return replace(chosen, rollouts=rollouts, anchors=anchors)

    def ppo_of(self, arm: str) -> dict[str, Any]:
        """Arguments of an arm's PPO."""
        if not self.pretrained:
            return self.ppo
        chosen = self.settings_of(arm)
        own = {"learning_rate": chosen.rate, "ent_coef": chosen.entropy, "n_epochs": chosen.epochs}
        return self.ppo | own | {"batch_size": self.ppo["n_steps"] * chosen.num_envs}

    def __post_init__(self) -> None:
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown:
            raise ValueError(f"unknown arms {unknown}, expected some of {sorted(ARMS)}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must lie in [0, 2**32), got {self.seed}")
        if not self.seconds > 0:
            raise ValueError(f"seconds must be positive, got {self.seconds}")
        if not 0.0 <= self.anchors <= 1.0:
            raise ValueError(f"anchors must be in [0, 1], got {self.anchors}")
        for name in (
            "num_envs",
            "real_envs",
            "workers",
            "max_in_flight",
            "warmup",
            "snapshots",
            "curve_episodes",
            "final_episodes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
