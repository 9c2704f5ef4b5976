"""The image variant: robots whose steps are cheap, and whose verdicts are dear.

Somebody has to say of each trial whether the robot did what it was told. A progress model, trained on a few demonstrations, says
it in their place, from the camera's images and the sentence; only anchors are judged truly. The policy learns from what it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv
from stable_baselines3 import PPO

from benchmarks.robots.runs import Meter, Variant
from benchmarks.robots.state import TASKS
from benchmarks.robots.trials import Length, Perceive, Senses, TrialMaker, demonstrate, timed, until_done
from wmrl_gym.data.demonstrations import Episode
from wmrl_gym.integrations.sb3 import to_vec_env
from wmrl_gym.study.run import machine
from wmrl_gym.world_models import ProgressModel
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

ARMS = {
    "real": "true verdicts only",
    "model": "progress model alone",
    "mixture": "plain mixture",
    "recommended": "WMRL, recommended",
    "truth": "every verdict true",
}


@dataclass(frozen=True, slots=True)
class ImageSetting:
    """What is compared, the same in every arm and task.

    Args:
        length: of a trial.
        trials: that an arm with a progress model makes, and the arm that is told every verdict.
        anchors: share of them whose true verdict is asked for. The arm of true verdicts only makes as many trials in all.
        demonstrations: of each task by its scripted expert, from which the progress model learns.
        cloned: of them, those that every arm's policy is a clone of at first; so few that there is something left to learn.
        cloning_steps: gradient steps of that.
        progress_steps: gradient steps of the progress model.
        rollout_trials: between two updates of the policy.
        curve_points: policies judged after the first.
        judged_trials: real trials that judge a policy.
        ppo: arguments of SB3's PPO. Its noise is the same throughout a rollout ("gSDE"), since only a whole trial is ever judged.

    Raises:
        ValueError: trials that are no whole number of rollouts.
    """

    length: Length = field(default_factory=Length)
    trials: int = 120
    anchors: float = 0.2
    demonstrations: int = 4
    cloned: int = 1
    cloning_steps: int = 200
    progress_steps: int = 400
    rollout_trials: int = 8
    curve_points: int = 2
    judged_trials: int = 20
    ppo: dict[str, Any] = field(
        default_factory=lambda: {
            "learning_rate": 3e-4,
            "batch_size": 80,
            "n_epochs": 5,
            "gamma": 1.0,
            "gae_lambda": 1.0,
            "use_sde": True,
            "sde_sample_freq": 30,
            "policy_kwargs": {"net_arch": [64, 64], "log_std_init": -3.2},
        }
    )

    def __post_init__(self) -> None:
        for trials in (self.trials, self.labels):
            if trials % self.rollout_trials:
                raise ValueError(f"trials must be whole rollouts of {self.rollout_trials}, got {trials}")

    @property
    def labels(self) -> int:
        """True verdicts that arms with anchors ask for, about."""
        return round(self.trials * self.anchors)

    def trials_of(self, arm: str) -> int:
        """Trials that an arm makes."""
        return self.labels if arm == "real" else self.trials


QUICK = ImageSetting(
    Length(steps=20),
    trials=4,
    anchors=0.5,
    demonstrations=1,
    cloning_steps=20,
    progress_steps=20,
    rollout_trials=2,
    curve_points=1,
    judged_trials=2,
    ppo={**ImageSetting().ppo, "batch_size": 20},
)


def variant(*, quick: bool) -> Variant:
    """The comparison; ``quick`` shows that it runs."""
    setting = QUICK if quick else ImageSetting()
    return Variant("images", ARMS, setting, train, "labels", "true verdicts", setting.trials_of, 1 if quick else 3)


class Labels(Meter):
    """Counts trials and labels, and judges policies at the start and on the way."""

    def __init__(self, arm: str, setting: ImageSetting, *, judge: Callable[[PPO], float], tell: Any) -> None:
        super().__init__()
        self.arm, self.setting, self.tell = arm, setting, tell
        self._judge = judge
        self._end = setting.trials_of(arm)
        self.trials = self.labels = 0
        self.pairs: list[tuple[float, float]] = []

    def _on_step(self) -> bool:
        if self.locals["dones"][0]:
            self.trials += 1
            last = self.training_env.last  # type: ignore[attr-defined]
            told = bool(np.isfinite(last.real_reward[0]))
            self.labels += told or self.arm in ("real", "truth")
            if told:
                self.pairs.append((float(last.wm_reward[0]), float(last.real_reward[0])))
            self.tell(self.trials)
        return True

    def _on_rollout_start(self) -> None:
        if self.trials >= self._end * len(self.curve) / self.setting.curve_points:
            self.judge()

    def success(self) -> float:
        return self._judge(self.model)  # type: ignore[arg-type]

    def so_far(self) -> dict[str, float]:
        return {"trials": self.trials, "labels": self.labels}


def progress_model(episodes: list[Episode], setting: ImageSetting, *, seed: int, folder: Path) -> ProgressModel:
    """One trained on demonstrations of every task; kept in ``folder``, so that it is done once."""
    model = ProgressModel(k=setting.length.frames_seen, seed=seed)
    if (folder / "progress.json").is_file():
        model.load(folder)
    else:
        model.fit([until_done(episode) for episode in episodes], steps=setting.progress_steps)
        model.save(folder)
    return model


def make_envs(arm: str, maker: TrialMaker, setting: ImageSetting, *, model: ProgressModel, seed: int) -> Any:
    """The one environment of an arm, as a vector environment."""
    if arm in ("real", "truth"):
        return SyncVectorEnv([TrialMaker(maker.task, maker.length, seeing=False)])  # nothing looks at images there
    options: dict[str, Any] = {
        "num_envs": 1,
        "anchors": 0.0 if arm == "model" else setting.anchors,
        "replaces": "reward",
        "warmup": 0,
        "update_every": 0,  # of a trial only the ends are seen, and a progress model learns from how frames follow each other
        "seed": seed,
    }
    if arm == "recommended":
        return corrected(maker, model, preset="recommended", **options)
    return WorldModelVectorEnv(maker, model, **options)


def train(arm: str, task: str, setting: ImageSetting, *, seed: int, folder: Path, tell: Any) -> dict[str, Any]:
    """Train one arm; returns its record.

    Args:
        arm: its name.
        task: its name.
        setting: what is compared.
        seed: of the run.
        folder: where demonstrations and progress model of this seed are kept for the other arms and tasks.
        tell: is told how many trials were made.
    """
    torch.set_num_threads(1)
    shown = demonstrate(TASKS, setting.length, each=setting.demonstrations, seed=seed, folder=folder / "demonstrations")
    mine = [episode for episode in shown if episode.task == task]
    senses = Senses.of(mine)
    model = progress_model(shown, setting, seed=seed, folder=folder / "progress")
    venv = to_vec_env(Perceive(make_envs(arm, TrialMaker(task, setting.length), setting, model=model, seed=seed), senses))
    venv.seed(seed)
    agent = PPO("MlpPolicy", venv, n_steps=setting.rollout_trials * setting.length.steps, seed=seed, device="cpu", **setting.ppo)
    clone(agent, mine[: setting.cloned], senses=senses, steps=setting.cloning_steps)

    def judge(agent: PPO) -> float:
        return success_rate(agent, task, setting, senses=senses, seed=1_000_003 * (seed + 1))

    meter = Labels(arm, setting, judge=judge, tell=tell)
    agent.learn(setting.trials_of(arm) * setting.length.steps, callback=meter)
    meter.judge()
    venv.close()
    record = {"arm": arm, "task": task, "seed": seed, "curve": meter.curve, "pairs": meter.pairs}
    return {**record, "gradient_steps": int(agent._n_updates), "machine": machine()}


def clone(agent: PPO, episodes: list[Episode], *, senses: Senses, steps: int) -> None:
    """Let the agent's policy do what demonstrations did, by least squares."""
    seen = torch.from_numpy(np.concatenate([senses(timed(episode))[:-1] for episode in episodes]))
    done = torch.from_numpy(np.concatenate([episode.action for episode in episodes])).float()
    optimizer = torch.optim.Adam(agent.policy.parameters(), lr=1e-3)
    for _ in range(steps):
        mean: Any = agent.policy.get_distribution(seen).distribution
        loss = ((mean.mean - done) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def success_rate(agent: PPO, task: str, setting: ImageSetting, *, senses: Senses, seed: int) -> float:
    """Share of real trials at whose end the task is done, by the policy's best actions."""
    env, done = TrialMaker(task, setting.length, seeing=False)(), 0.0
    for trial in range(setting.judged_trials):
        observation, _ = env.reset(seed=seed + trial)
        over = False
        while not over:
            batch = {key: [value] if isinstance(value, str) else value[None] for key, value in observation.items()}
            action, _ = agent.predict(senses(batch)[0], deterministic=True)
            observation, reward, over, _, _ = env.step(action)
            done += float(reward)
    env.close()
    return done / setting.judged_trials
