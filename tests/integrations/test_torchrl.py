"""TorchRL collects from the environments, single and batched, and its losses see weights and only what is known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import check_env_specs
from torchrl.envs.libs.gym import GymEnv
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

import wmrl_gym  # noqa: F401 - registers the ids
from tests.bandit import Bandit
from tests.drifting import Drift, fitted
from tests.integrations.poisoned import poisoned
from wmrl_gym.integrations import arrays
from wmrl_gym.integrations import torchrl as ours
from wmrl_gym.world_models import EnsembleDynamics, OutcomeModel
from wmrl_gym.wrappers import WorldModelWrapper, world_model_parts
from wmrl_gym.wrappers.vector import WorldModelVectorEnv, corrected

DISABLED = AutoresetMode.DISABLED


class Choices(torch.distributions.Independent):
    """One choice for each part of a MultiDiscrete action."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(torch.distributions.Categorical(logits=logits), 1)

    @property
    def deterministic_sample(self) -> torch.Tensor:
        return self.base_dist.logits.argmax(-1)


class Logits(torch.nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(inputs, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.net(observation).unflatten(-1, (2, 4))


def actor_critic() -> tuple[Any, Any]:
    torch.manual_seed(0)
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Logits(5), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=Choices, return_log_prob=True),
    )
    net = torch.nn.Sequential(torch.nn.Linear(5, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    return actor, TensorDictModule(net, ["observation"], ["state_value"])


def ppo(envs: Any, *, rollouts: int, epochs: int = 4, steps: int = 6, weigh: bool = True) -> Any:
    """TorchRL's own parts, put together as its tutorial does; returns the trained actor."""
    actor, critic = actor_critic()
    env = ours.to_env(envs, keys=("weight", "reward_valid"), categorical_action_encoding=True)
    env.set_seed(0)
    gae = GAE(gamma=1.0, lmbda=0.95, value_network=critic)
    estimator = ours.Weighted(gae) if weigh else gae
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.003, normalize_advantage=True, normalize_advantage_exclude_dims=())
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.01)
    collector = Collector(env, actor, frames_per_batch=steps * envs.num_envs, total_frames=steps * envs.num_envs * rollouts)
    for data in collector:
        for _ in range(epochs):
            ready = estimator(data.clone()).reshape(-1)
            said = loss(ready)
            optimiser.zero_grad()
            (said["loss_objective"] + said["loss_critic"] + said["loss_entropy"]).backward()
            optimiser.step()
    collector.shutdown()
    return actor


def parameters(actor: Any) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in actor.parameters()])


def test_ppo_learns_the_bandit_in_its_world_model() -> None:
    bandit = Bandit()
    envs = corrected(bandit, fitted(bandit, 150), num_envs=64, anchors=0.05, update_every=0, autoreset_mode=DISABLED)
    actor = ppo(envs, rollouts=50)
    best = [0.5 + 0.5 * bandit.quality[task, :3].max() for task in range(3)]
    scores = []
    for task in range(3):
        first, second = actor[0].module(torch.eye(5)[[task]]).argmax(-1)[0].tolist()
        scores.append(0.1 if first == 3 else 0.5 + 0.5 * bandit.quality[task, first, second])
    assert np.mean(scores) > 0.9 * np.mean(best)


@pytest.mark.parametrize("weigh", [True, False])
def test_unknown_rewards_are_not_learnt_from(weigh: bool) -> None:
    trained = []
    for placeholder in (0.0, 1000.0):
        envs = poisoned(placeholder)
        trained.append(parameters(ppo(envs, rollouts=3, weigh=weigh)))
        assert envs.unknown > 0
    assert torch.equal(*trained) is weigh, "without our estimator the placeholder shows in what was learnt"


def test_a_rollout_without_a_single_known_reward_is_a_clear_error() -> None:
    env = ours.to_env(poisoned(0.0), categorical_action_encoding=True)
    data = env.rollout(2, break_when_any_done=False)
    data["next", "reward_valid"] = torch.zeros_like(data["next", "reward_valid"])
    with pytest.raises(RuntimeError, match="not one step of this rollout has a known reward"):
        ours.Weighted(GAE(gamma=1.0, lmbda=0.95, value_network=actor_critic()[1]))(data)


def test_advantages_are_multiplied_and_episodes_before_an_unknown_reward_left_out() -> None:
    envs = WorldModelVectorEnv("CartPole-v1", Drift(step=0.001), num_envs=2, anchors=0.0, autoreset_mode=DISABLED)
    data = ours.to_env(envs).rollout(4, break_when_any_done=False)
    critic = TensorDictModule(torch.nn.Linear(4, 1), ["observation"], ["state_value"])
    gae = GAE(gamma=0.9, lmbda=0.8, value_network=critic)
    plain = gae(data.clone())["advantage"].detach()
    data["next", "weight"] = torch.arange(8.0).reshape(2, 4, 1)
    data["next", "reward_valid"][1, 2] = False
    ready = ours.Weighted(gae)(data)
    assert ready.batch_size == (5,)
    torch.testing.assert_close(ready["advantage"][:4, 0], plain[0, :, 0] * torch.arange(4.0))
    torch.testing.assert_close(ready["advantage"][4, 0], plain[1, 3, 0] * 7.0)
    assert ours.known(data).batch_size == (7,)


def test_an_estimator_that_standardises_unknown_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match="normalize_advantage=True"):
        ours.Weighted(GAE(gamma=0.9, lmbda=0.8, value_network=actor_critic()[1], average_gae=True))


def test_the_data_says_what_the_info_said() -> None:
    """Python numbers of a single environment, NaN where nobody knows one."""
    env = ours.to_env(WorldModelWrapper(gym.make("CartPole-v1"), Drift(step=0.001, pays=0.25), anchors=0.0))
    check_env_specs(env)
    data = env.rollout(3)
    assert data["next", "wm_reward"].flatten().tolist() == [0.25] * 3
    assert data["next", "real_reward"].isnan().all()
    assert data["next", "depth"].flatten().tolist() == [1, 2, 3]
    assert data["depth"].flatten().tolist() == [0, 1, 2]
    assert not data["next", "anchor"].any()


def test_an_id_is_an_environment_of_torchrl() -> None:
    model = OutcomeModel(8, encoder="none")
    options = {"task": "diabetes", "world_model": model, "preset": "recommended"}
    env = GymEnv("wmrl/AutoResearchDesign-v0", categorical_action_encoding=True, **options)
    env.set_info_dict_reader(ours.InfoReader(None, ("anchor", "weight", "reward_valid")))
    data = env.rollout(2)
    assert data["next", "anchor"].all()  # the model knows nothing yet: a real episode
    assert data["next", "reward_valid"].all()
    env.close()


def test_a_batch_goes_on_after_its_ends() -> None:
    envs = WorldModelVectorEnv(
        "CartPole-v1", Drift(step=0.001), num_envs=3, anchors=0.0, max_model_steps=2, autoreset_mode=DISABLED
    )
    env = ours.to_env(envs)
    check_env_specs(env)
    data = env.rollout(5, break_when_any_done=False)
    assert data["next", "truncated"].squeeze(-1).tolist() == [[False, True, False, True, False]] * 3
    torch.testing.assert_close(data["next", "observation"][:, 1], data["observation"][:, 0] + 0.002)
    torch.testing.assert_close(data["observation"][:, 1], data["next", "observation"][:, 0])
    assert (data["observation"][:, 2].abs() <= 0.05).all()  # CartPole's starts


def test_other_autoreset_modes_are_refused() -> None:
    envs = corrected("CartPole-v1", Drift(), num_envs=2)
    with pytest.raises(ValueError, match=r"must be DISABLED, got AutoresetMode\.NEXT_STEP"):
        ours.to_env(envs)


def test_a_key_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \['weights'\]"):
        ours.InfoReader(None, ("weights",))


def test_a_model_learns_while_a_collector_holds_gradients_off() -> None:
    model = EnsembleDynamics(min_transitions=60, max_gradient_steps=20)
    envs = corrected("CartPole-v1", model, num_envs=4, anchors=0.5, warmup=60, update_every=20, autoreset_mode=DISABLED)
    fits = []
    original = model.update
    model.update = lambda *args, **kwargs: (fits.append(torch.is_grad_enabled()), original(*args, **kwargs))[1]  # type: ignore[method-assign]
    collector = Collector(ours.to_env(envs), None, frames_per_batch=160, total_frames=160)
    for data in collector:
        assert data.batch_size == (4, 40)
    collector.shutdown()
    assert fits == [True] * len(fits)
    assert len(fits) > 1
    assert model.fitted


def test_late_truths_rewrite_the_rewards_of_their_steps() -> None:
    bandit = Bandit()
    envs = corrected(
        bandit,
        fitted(bandit),
        num_envs=16,
        anchors=0.5,
        anchor_mode="background",
        late=True,
        update_every=0,
        autoreset_mode=DISABLED,
        group_size=1,
    )
    late = arrays.LateTruths(envs)
    data = ours.to_env(envs, categorical_action_encoding=True).rollout(6, break_when_any_done=False)
    before = data["next", "reward"].clone()
    ours.join_late(late, data)
    changed = (data["next", "reward"] != before).squeeze(-1)
    pairs = data["next", "pair"].squeeze(-1)
    assert late.arrived == int((pairs >= 0).sum()) > 0
    assert late.missing == 0
    assert changed.any()
    assert (pairs[changed] >= 0).all()
    parts = world_model_parts(envs)
    assert parts is not None
    assert parts.residual is not None
    assert not any(int(pair) in parts.residual for pair in pairs.flatten())
    envs.close()
