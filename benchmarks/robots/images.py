"""The image variant: robots whose steps are cheap, and whose verdicts are dear.

Somebody has to say of each trial whether the robot did what it was told. A progress model, trained on a few demonstrations, says
it in their place, from the camera's images and the sentence; only anchors are judged truly. The policy learns from what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from wmrl_gym.world_models.progress.clips import TrainSettings
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
        cloned: of them, those of each task that every arm's policy is a clone of at first; so few that there is something left to
            learn, and that some trials succeed.
        cloning_steps: gradient steps of that.
        towards: tasks whose policy takes in too where the target lies as seen from the hand; without it none of them is learnt.
        noise: standard deviation of a policy's actions at first; so little that its trials do not all fail.
        progress_steps: gradient steps of the progress model.
        progress_batch: frames in each of them.
        update_clips: anchors between two updates of the progress model in the arms that have any.
        update_steps: gradient steps of such an update.
        rollout_trials: between two updates of the policy.
        num_envs: trials side by side.
        curve_points: policies judged after the first.
        judged_trials: real trials that judge a policy.
        ppo: arguments of SB3's PPO. A batch is a whole rollout, so that advantages are relative to all of its trials.

    Raises:
        ValueError: trials that are no whole number of rollouts, or rollouts that are no whole number of ``num_envs``.
    """

    length: Length = field(default_factory=Length)
    trials: int = 320
    anchors: float = 0.2
    demonstrations: int = 4
    cloned: Mapping[str, int] = field(default_factory=lambda: {"reach": 4, "button-press": 1, "drawer-open": 1})
    cloning_steps: int = 200
    towards: tuple[str, ...] = ("reach",)
    noise: Mapping[str, float] = field(default_factory=lambda: {"reach": 0.22, "button-press": 0.37, "drawer-open": 0.37})
    progress_steps: int = 600
    progress_batch: int = 48
    update_clips: int = 8
    update_steps: int = 60
    rollout_trials: int = 16
    num_envs: int = 8
    curve_points: int = 2
    judged_trials: int = 20
    ppo: dict[str, Any] = field(
        default_factory=lambda: {
            "learning_rate": 2e-3,
            "batch_size": 320,
            "n_epochs": 10,
            "gamma": 1.0,
            "gae_lambda": 0.95,
            "policy_kwargs": {"net_arch": [64, 64]},
        }
    )

    def __post_init__(self) -> None:
        for trials in (self.trials, self.labels):
            if trials % self.rollout_trials:
                raise ValueError(f"trials must be whole rollouts of {self.rollout_trials}, got {trials}")
        if self.rollout_trials % self.num_envs:
            raise ValueError(f"a rollout must be whole rounds of {self.num_envs} trials, got {self.rollout_trials}")

    @property
    def labels(self) -> int:
        """True verdicts that arms with anchors ask for, about."""
        return round(self.trials * self.anchors)

    def trials_of(self, arm: str) -> int:
        """Trials that an arm makes."""
        return self.labels if arm == "real" else self.trials


QUICK = ImageSetting(
    trials=4,
    anchors=0.5,
    demonstrations=1,
    cloned={task: 1 for task in TASKS},
    cloning_steps=20,
    progress_steps=20,
    rollout_trials=2,
    num_envs=2,
    curve_points=1,
    judged_trials=2,
    ppo={**ImageSetting().ppo, "batch_size": 40},
)


def variant(*, quick: bool) -> Variant:
    """The comparison; ``quick`` shows that it runs."""
    setting = QUICK if quick else ImageSetting()
    return Variant("images", ARMS, setting, train, "labels", "true verdicts", setting.trials_of, 1 if quick else 5)


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
        over = self.locals["dones"]
        if over.any():
            last = self.training_env.last  # type: ignore[attr-defined]
            told = over & np.isfinite(last.real_reward)
            self.trials += int(over.sum())
            self.labels += int((over if self.arm in ("real", "truth") else told).sum())
            self.pairs += zip(last.wm_reward[told].tolist(), last.real_reward[told].tolist(), strict=True)
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
    """One trained on demonstrations of every task; kept in ``folder``, so that most of it is done once."""
    model = ProgressModel(
        collapse="success",
        k=setting.length.frames_seen,
        min_clips=setting.update_clips,
        update_steps=setting.update_steps,
        training=TrainSettings(batch_size=setting.progress_batch),
        seed=seed,
    )
    complete = [until_done(episode) for episode in episodes]
    if (folder / "progress.json").is_file():
        model.load(folder)
        model.fit(complete, steps=0)  # what is saved is the network: updates want its demonstrations too
    else:
        model.fit(complete, steps=setting.progress_steps)
        model.save(folder)
    return model


def make_envs(arm: str, maker: TrialMaker, setting: ImageSetting, *, model: ProgressModel, seed: int) -> Any:
    """An arm's trials, side by side."""
    if arm in ("real", "truth"):
        blind = TrialMaker(maker.task, maker.length, seeing=False)  # nothing looks at images there
        return SyncVectorEnv([blind] * setting.num_envs)
    options: dict[str, Any] = {
        "num_envs": setting.num_envs,
        "anchors": 0.0 if arm == "model" else setting.anchors,
        "replaces": "reward",
        "warmup": 0,
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
    senses = Senses.of(mine, towards=task in setting.towards)
    model = progress_model(shown, setting, seed=seed, folder=folder / "progress")
    venv = to_vec_env(Perceive(make_envs(arm, TrialMaker(task, setting.length), setting, model=model, seed=seed), senses))
    venv.seed(seed)
    agent = fine_tuner(venv, task, setting, seed=seed)
    clone(agent, mine[: setting.cloned[task]], senses=senses, steps=setting.cloning_steps)

    def judge(agent: PPO) -> float:
        return success_rate(agent, task, setting, senses=senses, seed=1_000_003 * (seed + 1))

    meter = Labels(arm, setting, judge=judge, tell=tell)
    agent.learn(setting.trials_of(arm) * setting.length.steps, callback=meter)
    meter.judge()
    venv.close()
    record = {"arm": arm, "task": task, "seed": seed, "curve": meter.curve, "pairs": meter.pairs}
    return {**record, "gradient_steps": int(agent._n_updates), "machine": machine()}


def fine_tuner(venv: Any, task: str, setting: ImageSetting, *, seed: int) -> PPO:
    """What learns, before it has learnt anything."""
    steps = setting.rollout_trials // setting.num_envs * setting.length.steps
    more = {**setting.ppo["policy_kwargs"], "log_std_init": float(np.log(setting.noise[task]))}
    return PPO("MlpPolicy", venv, n_steps=steps, seed=seed, device="cpu", **{**setting.ppo, "policy_kwargs": more})


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
