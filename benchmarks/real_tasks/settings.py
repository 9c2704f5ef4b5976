"""What is compared, and what is set for each arm: learning rate, entropy, passes, and when anchors come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from wmrl_gym.files import write_json

GROUP = 5
"""Episodes a group of the arms with the paper's anchors: every budget is a multiple of it, so that none is left over."""
BUDGETS = (30, 100, 200)
"""Real executions of a run on one task."""
TUNING_SEEDS = (9000, 9001)
FILE = Path(__file__).parent / "tuned.json"


@dataclass(frozen=True, slots=True)
class Setting:
    """What the world model knows.

    Args:
        what: in one sentence.
        pretrained: it knows other tasks before the run.
        shipped: these are the training tasks, as OutcomeModel.pretrained() knows them; else the other held-out tasks' tables.
        warmup: share of the budget that is spent on random designs of the task before the run, for the model to be fitted on.
        least: at least so many of them.
        learns: executions between two updates of the model in the run; 0 leaves it as it is.
        refit_share: how many new executions call for another fit, as a share of those known.
        capacity: executions that it keeps, of which the newest half stays.
    """

    what: str
    pretrained: bool = False
    shipped: bool = False
    warmup: float = 0.0
    least: int = 0
    learns: int = 0
    refit_share: float = 0.2
    capacity: int = 4096

    def executions(self, budget: int) -> int:
        """Random executions before the run, a multiple of the group size."""
        return 0 if self.pretrained else max(self.least, int(budget * self.warmup) // GROUP * GROUP)


SETTINGS: dict[str, Setting] = {
    "transfer": Setting("the world model knows the other held-out tasks and stays as it is", pretrained=True),
    "shipped": Setting("the world model is OutcomeModel.pretrained() and stays as it is", pretrained=True, shipped=True),
    "transfer-learning": Setting(
        "as in transfer, and learns from the anchors: at 64 of them first, then with 20 new ones",
        pretrained=True,
        learns=16,
        refit_share=0.04,
        capacity=512,
    ),
    "warm-up": Setting("the world model is fitted on random designs of the task and stays as it is", warmup=0.3, least=10),
    "learning": Setting(
        "the world model begins with ten random designs of the task and learns from the anchors", least=10, learns=16
    ),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a policy is trained.

    Args:
        rate: Adam's learning rate.
        entropy: weight of the entropy bonus.
        epochs: passes over a rollout (PPO), or gradient steps on it (the group method).
        early: share of the anchors that come in the first tenth of the run only; the rest is spread over all of it.
        num_envs: episodes a rollout.
        steps: policy steps of arms that imagine, and of real rewards everywhere.
        real_envs: episodes a rollout of the arm that only executes.
        first: how much of the run the early part is.

    Raises:
        ValueError: steps are no whole rollouts.
    """

    rate: float
    entropy: float
    epochs: int = 2
    early: float = 0.7
    num_envs: int = 64
    steps: int = 1_920
    real_envs: int = 5
    first: float = 0.1

    def __post_init__(self) -> None:
        if self.steps % self.num_envs:
            raise ValueError(f"steps must be whole rollouts of {self.num_envs}, got {self.steps}")

    def as_json(self) -> dict[str, Any]:
        """As a row keeps them."""
        return asdict(self)


RATES = (0.1, 0.3, 1.0)
ENTROPIES = {"ppo": (0.01, 0.1), "group": (0.001, 0.01)}
"""PPO's advantages have a standard deviation of 1, the group method's are in units of the reward."""
EPOCHS = {"ppo": (2, 8), "group": (1, 4)}
EARLY = (0.7, 0.0)


def grid(trainer: str, *, executes_only: bool) -> list[Settings]:
    """The grid of an arm: learning rate x entropy, and passes over a rollout for the arm that has few of them."""
    epochs: Sequence[int] = EPOCHS[trainer] if executes_only else EPOCHS[trainer][:1]
    return [Settings(*each) for each in product(RATES, ENTROPIES[trainer], epochs)]


def key(setting: str, trainer: str, arm: str, budget: int) -> str:
    """Names an entry of the tuned table."""
    return f"{setting}/{trainer}/{arm}/{budget}"


def tuned_at(arm: str, budget: int) -> int:
    """The budget at which an arm's settings are chosen: real only at each of its own, up to 200, and all others at 30."""
    if arm == "real":
        return min(budget, max(BUDGETS))
    return min(budget, min(BUDGETS))


def tuned() -> dict[str, dict[str, Any]]:
    """The tuned table, by :func:`key`: the settings chosen, and the value of each that was tried."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}


def write_tuned(table: dict[str, dict[str, Any]]) -> None:
    """Write the tuned table."""
    write_json(FILE, dict(sorted(table.items())))
