"""skrl: its own wrapper of Gymnasium environments, which refuses the rewards that its agents could not leave out.

skrl's agents standardise advantages inside their update, with every step of the rollout: there is no place for a weight, nor for
a step whose reward is unknown.

>>> import gymnasium as gym
>>> from wmrl_gym.integrations import skrl
>>> env = skrl.to_env(gym.make("CartPole-v1"))
>>> env.num_envs
1
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

if find_spec("skrl") is None:
    raise DependencyNotInstalled("skrl is not installed, run `pip install 'wmrl-gym[skrl]'`")

from skrl.envs.wrappers.torch.gymnasium_envs import GymnasiumWrapper

from wmrl_gym.wrappers import step_info

__all__ = ["CheckedEnv", "UnusableStep", "to_env"]


class UnusableStep(RuntimeError):
    """A step whose reward is unknown, or whose advantage should be weighted: skrl would learn from it as if it were neither."""


class CheckedEnv(GymnasiumWrapper):  # type: ignore[misc]
    """skrl's wrapper of a Gymnasium environment; each step is checked before an agent sees it."""

    def step(self, actions: Any) -> Any:
        """Step.

        Raises:
            UnusableStep: a reward is unknown, or a weight is not 1.
        """
        observation, reward, terminated, truncated, infos = super().step(actions)
        over = (terminated | truncated).cpu().numpy().reshape(-1)
        given = infos
        if not self._vectorized:
            given = {key: np.array([infos[key]]) for key in ("weight", "reward_valid") if key in infos}
        info = step_info(given, over)
        unknown = np.flatnonzero(~info["reward_valid"]).tolist()
        if unknown:
            raise UnusableStep(f"the rewards of environments {unknown} are unknown, and skrl has no place for steps without one")
        weighted = np.flatnonzero(info["weight"] != 1.0).tolist()
        if weighted:
            raise UnusableStep(
                f"the advantages of environments {weighted} should be weighted, and skrl has no place for weights: "
                "use a preset that corrects rewards, such as 'recommended'"
            )
        return observation, reward, terminated, truncated, infos

    def render(self, *args: Any, **kwargs: Any) -> Any:
        """What a single environment draws; a vector one draws nothing, though skrl's trainers ask for it at every step."""
        return None if self._vectorized else super().render(*args, **kwargs)


def to_env(env: gym.Env[Any, Any] | VectorEnv[Any, Any, NDArray[Any]]) -> CheckedEnv:
    """``env`` as an environment for skrl's trainers.

    Args:
        env: single, or a vector environment with ``autoreset_mode="SameStep"``: skrl's trainers reset nothing themselves, and
            would learn from the step that the default mode resets in.

    Raises:
        ValueError: a vector environment in another autoreset mode.
    """
    if isinstance(env, VectorEnv):
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode is not AutoresetMode.SAME_STEP:
            raise ValueError(f"skrl learns from every step: autoreset_mode must be SAME_STEP, got {mode}")
    return CheckedEnv(env)
