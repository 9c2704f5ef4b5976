"""Masks of legal actions are those of the state that the agent sees, or an error."""

from __future__ import annotations

import numpy as np
import pytest

import wmrl_gym  # noqa: F401 - registers the ids
from tests.wrappers.goal import Goal, Told, cart_pole
from tests.wrappers.nothing import Nothing
from wmrl_gym.world_models import EnsembleDynamics, WorldModelError
from wmrl_gym.wrappers import (
    OnlineDebiasing,
    WorldModelWrapper,
)
from wmrl_gym.wrappers.vector import WorldModelVectorEnv


def test_masks_are_those_of_the_state_or_an_error() -> None:
    real = WorldModelWrapper(Goal(), Nothing(), anchors=1.0)
    real.reset(seed=0)
    np.testing.assert_array_equal(real.action_masks(), [False, True, True])
    real.step(2)
    np.testing.assert_array_equal(real.get_wrapper_attr("action_masks")(), [True, True, True])
    imagined = OnlineDebiasing(WorldModelWrapper(Goal(), Nothing(), anchors=0.0))
    imagined.reset(seed=0)
    np.testing.assert_array_equal(imagined.action_masks(), [False, True, True])  # its start is a real one
    imagined.step(2)
    with pytest.raises(WorldModelError, match="Nothing does not predict which actions are legal"):
        imagined.action_masks()
    told = WorldModelWrapper(Goal(), Told(), anchors=0.0)
    told.reset(seed=0)
    told.step(2)
    np.testing.assert_array_equal(told.action_masks(), [False, True, True])
    assert not hasattr(WorldModelWrapper(cart_pole(), Nothing()), "action_masks")


def test_warm_up_and_background_anchors_act_inside_the_mask() -> None:
    model = EnsembleDynamics(hidden=(8,), min_transitions=40, max_gradient_steps=5)
    envs = WorldModelVectorEnv(Goal, model, num_envs=2, anchors=1.0, anchor_mode="background", seed=0)
    envs.reset(seed=0)
    assert model.fitted
    for _ in range(8):
        envs.step(np.zeros(2, int))  # illegal at the real start
    assert envs.engine.wait(60)
    assert envs.engine.unknown == 0
    envs.close()


def test_masks_of_many_environments_are_rows() -> None:
    envs = WorldModelVectorEnv(Goal, Nothing(), num_envs=3, anchors=1.0, seed=0)
    envs.reset(seed=0)
    np.testing.assert_array_equal(envs.action_masks(), np.tile([False, True, True], (3, 1)))
    envs.step(np.full(3, 2))
    np.testing.assert_array_equal(envs.action_masks(), np.ones((3, 3), bool))
    for _ in range(4):
        envs.step(np.full(3, 2))
    assert envs.pending_reset.all()
    np.testing.assert_array_equal(envs.action_masks(), np.ones((3, 3), bool))
    envs.close()
