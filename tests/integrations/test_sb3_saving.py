"""A run of Stable-Baselines3 that is saved and loaded goes on as if nothing had happened."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from tests.bandit import Bandit
from tests.drifting import fitted
from wmrl_gym.files import CannotWrite
from wmrl_gym.integrations import sb3
from wmrl_gym.world_models import EnsembleDynamics
from wmrl_gym.wrappers import diagnostics
from wmrl_gym.wrappers.vector import corrected

DYNAMICS: dict[str, Any] = {"min_transitions": 40, "max_gradient_steps": 20, "hidden": (8,), "n_members": 2, "n_elites": 2}


def bandit_run(model: Any) -> VecEnv:
    """Designs in a model that learns from blocking anchors."""
    envs = corrected(Bandit(), model, num_envs=8, anchors=0.3, update_every=8, update_mode="blocking", seed=3)
    return sb3.to_vec_env(envs)


def cartpole_run(model: Any) -> VecEnv:
    """Observations scaled by a wrapper that has a state of its own."""
    envs = corrected("CartPole-v1", model, num_envs=4, anchors=0.0, warmup=60, max_model_steps=5, seed=3)
    if not model.fitted:
        envs.unwrapped.warm_up(60)
    return VecNormalize(sb3.to_vec_env(envs), norm_reward=False)


def ppo(venv: VecEnv) -> Any:
    return PPO("MlpPolicy", venv, n_steps=12, batch_size=24, n_epochs=2, seed=0, device="cpu", **sb3.weighted(venv))


def dqn(venv: VecEnv) -> Any:
    chosen = sb3.relabelled(venv, real_share=0.0)
    return DQN("MlpPolicy", venv, learning_starts=20, train_freq=4, batch_size=16, seed=0, device="cpu", **chosen)


def state(trainer: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """All parameters, and what the layers have counted, but for seconds and for how the newest fit went."""
    parameters = torch.cat([each.detach().reshape(-1) for each in trainer.policy.parameters()])
    said = diagnostics(sb3.base_of(trainer.get_env()).envs)
    return parameters, {name: value for name, value in said.items() if not name.endswith("_s") and not name.startswith("wm/")}


RUNS = {
    "ppo, designs": (lambda: fitted(Bandit()), bandit_run, ppo, PPO, 96),
    "ppo, dynamics": (lambda: EnsembleDynamics(**DYNAMICS), cartpole_run, ppo, PPO, 96),
    "dqn, dynamics": (lambda: EnsembleDynamics(**DYNAMICS), cartpole_run, dqn, DQN, 80),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_to_the_same_end(name: str, tmp_path: Path) -> None:
    world_model, environment, make, algorithm, steps = RUNS[name]
    straight = make(environment(world_model()))
    straight.learn(steps)
    saved = make(environment(world_model()))
    saved.learn(steps)
    torch.testing.assert_close(state(saved)[0], state(straight)[0], rtol=0, atol=0)
    sb3.save(tmp_path / "run", saved)
    saved.get_env().close()
    torch.manual_seed(99)
    np.random.seed(99)
    straight = _go_on_alone(straight, tmp_path, environment, algorithm, steps)
    resumed = sb3.load(tmp_path / "run", algorithm, environment)
    resumed.learn(steps, reset_num_timesteps=False)
    assert resumed.num_timesteps == straight.num_timesteps
    (one, counted), (other, counted_too) = state(straight), state(resumed)
    assert torch.equal(one, other)
    assert counted == pytest.approx(counted_too, nan_ok=True)
    for each in (straight, resumed):
        each.get_env().close()


def _go_on_alone(straight: Any, tmp_path: Path, environment: Any, algorithm: Any, steps: int) -> Any:
    """Go on in this process, with the random numbers that the saved run had."""
    saved = pickle.loads((tmp_path / "run" / "state.pkl").read_bytes())["random"]
    torch.set_rng_state(saved["torch"])
    np.random.set_state(saved["numpy"])
    return straight.learn(steps, reset_num_timesteps=False)


def test_a_run_without_a_world_model_is_saved_too(tmp_path: Path) -> None:
    def environment(model: Any) -> VecEnv:
        assert model is None
        return sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"))

    first = PPO("MlpPolicy", environment(None), n_steps=8, batch_size=16, seed=0, device="cpu").learn(16)
    sb3.save(tmp_path / "run", first)
    second = sb3.load(tmp_path / "run", PPO, environment, learning_rate=0.5)
    assert second.learning_rate == 0.5
    assert torch.equal(*(torch.cat([p.reshape(-1) for p in each.policy.parameters()]) for each in (first, second)))
    assert second.learn(16, reset_num_timesteps=False).num_timesteps == 32
    for each in (first, second):
        each.get_env().close()  # type: ignore[union-attr]


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = ppo(bandit_run(fitted(Bandit())))
    sb3.save(tmp_path / "run", trainer)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(type(trainer), "save", full)
    with pytest.raises(CannotWrite, match="the disk is full"):
        sb3.save(tmp_path / "run", trainer)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    trainer.get_env().close()


def test_what_is_no_run_or_another_environments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        sb3.load(tmp_path, PPO, bandit_run)
    trainer = ppo(bandit_run(fitted(Bandit())))
    sb3.save(tmp_path / "run", trainer)
    with pytest.raises(ValueError, match="layers with a state, the environment has 0"):
        sb3.load(
            tmp_path / "run", PPO, lambda _: sb3.to_vec_env(gym.make_vec("CartPole-v1", num_envs=8, vectorization_mode="sync"))
        )
    path = tmp_path / "run" / "state.pkl"
    path.write_bytes(pickle.dumps({**pickle.loads(path.read_bytes()), "format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        sb3.load(tmp_path / "run", PPO, bandit_run)
    trainer.get_env().close()
