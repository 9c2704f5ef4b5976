"""sb3-contrib's MaskablePPO and RecurrentPPO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorWrapper
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.vec_env import VecNormalize

from tests.integrations.poisoned import poisoned
from wmrl_gym.integrations import sb3
from wmrl_gym.integrations.sb3.contrib import WeightedRecurrentPPO

SETTINGS: dict[str, Any] = {"n_steps": 8, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu"}


class NeverThree(VectorWrapper):
    """Forbids 3 as the first part of a design."""

    def action_masks(self) -> Any:
        masks = np.ones((self.num_envs, 8), bool)
        masks[:, 3] = False
        return masks


def parameters(model: Any) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1) for each in model.policy.parameters()])


def trained(kind: str, placeholder: float, *, weigh: bool) -> torch.Tensor:
    envs = poisoned(placeholder, mode=AutoresetMode.SAME_STEP)
    venv = sb3.to_vec_env(NeverThree(envs))
    model: Any
    if kind == "masks":
        arguments = sb3.weighted(venv, masks=True) if weigh else {}
        model = MaskablePPO("MlpPolicy", venv, **SETTINGS, **arguments)
    else:
        model = (WeightedRecurrentPPO if weigh else RecurrentPPO)("MlpLstmPolicy", venv, **SETTINGS)
    model.learn(3 * 8 * 16)
    assert envs.unknown > 0
    if kind == "masks":
        actions = model.rollout_buffer.actions
        assert (actions.reshape(-1, 2)[:, 0] != 3).all()
    venv.close()
    return parameters(model)


@pytest.mark.parametrize("weigh", [True, False])
@pytest.mark.parametrize("kind", ["masks", "recurrent"])
def test_unknown_rewards_are_not_learnt_from(kind: str, weigh: bool) -> None:
    equal = torch.equal(trained(kind, 0.0, weigh=weigh), trained(kind, 1000.0, weigh=weigh))
    assert equal is weigh, "without the integration the placeholder shows in what was learnt"


def one_rollout() -> tuple[Any, Any]:
    """An environment, and its rollout as it is before minibatches are made."""
    venv = sb3.to_vec_env(poisoned(0.0, mode=AutoresetMode.SAME_STEP))
    model = WeightedRecurrentPPO("MlpLstmPolicy", venv, **SETTINGS)
    model.learn(8 * 16)
    callback = CallbackList([])
    callback.init_callback(model)
    model.collect_rollouts(model.env, callback, model.rollout_buffer, 8)
    return venv, model.rollout_buffer


def test_weights_multiply_the_advantages_of_sequences() -> None:
    venv, buffer = one_rollout()
    unweighted, returns = buffer.advantages.copy(), buffer.returns.copy()
    assert (buffer.weights == 1.0).all()
    buffer.weights[:] = 3.0
    buffer.recompute()
    np.testing.assert_allclose(buffer.advantages, 3.0 * unweighted, rtol=1e-5)
    np.testing.assert_array_equal(buffer.returns, returns)
    known = sum(int((each.mask > 0).sum()) for each in buffer.get(1000))
    assert known == buffer.usable.sum() < buffer.usable.size
    venv.close()


def test_a_rollout_of_sequences_without_known_rewards_is_a_clear_error() -> None:
    venv, buffer = one_rollout()
    buffer.usable[:] = False
    with pytest.raises(RuntimeError, match="not two steps"):
        next(buffer.get(32))
    buffer.usable[::2, ::2] = True
    with pytest.raises(RuntimeError, match="take larger ones"):
        list(buffer.get(1))
    with pytest.raises(TypeError, match="timeout_s"):
        buffer.park(0, {0: 0})
    venv.close()


def test_rewards_that_vecnormalize_scales_are_refused() -> None:
    venv = sb3.to_vec_env(poisoned(0.0, mode=AutoresetMode.SAME_STEP))
    with pytest.raises(TypeError, match="norm_reward=False"):
        WeightedRecurrentPPO("MlpLstmPolicy", VecNormalize(venv), **SETTINGS)
    with pytest.raises(TypeError, match="norm_reward=False"):
        sb3.weighted(VecNormalize(venv), masks=True)
    venv.close()
