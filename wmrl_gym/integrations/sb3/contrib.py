"""sb3-contrib: MaskablePPO and RecurrentPPO that use weights and leave out what is unknown."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

if find_spec("sb3_contrib") is None:
    from gymnasium.error import DependencyNotInstalled

    raise DependencyNotInstalled("sb3-contrib is not installed, run `pip install 'wmrl-gym[sb3-contrib]'`")

from sb3_contrib import RecurrentPPO
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableRolloutBuffer
from sb3_contrib.common.recurrent.buffers import RecurrentDictRolloutBuffer, RecurrentRolloutBuffer

from wmrl_gym.integrations.sb3.buffers import WeightedBuffer
from wmrl_gym.integrations.sb3.vec_env import learnable


class _WithMasks(WeightedBuffer):
    columns = (*WeightedBuffer.columns, "action_masks")


class WeightedMaskableRolloutBuffer(_WithMasks, MaskableRolloutBuffer):
    """MaskablePPO's rollout buffer with weights and without unknown rewards: ``MaskablePPO(..., **weighted(venv, masks=True))``.

    Args:
        venv: the environment that is stepped.
        seed: of the minibatches' order.
    """


class WeightedMaskableDictRolloutBuffer(_WithMasks, MaskableDictRolloutBuffer):
    """:class:`WeightedMaskableRolloutBuffer` for Dict observations."""


class _RecurrentBuffer(WeightedBuffer):
    """Adds weights to sb3-contrib's recurrent buffers.

    A step of unknown return stays in its sequence, whose state it carries on, and is masked out of the loss as padding is.
    """

    def get(self, batch_size: int | None = None) -> Generator[Any, None, None]:
        """sb3-contrib's minibatches of sequences, but for those with fewer than two known steps: advantages are normalised.

        Raises:
            RuntimeError: no minibatch has two.
        """
        known = self.usable.swapaxes(0, 1).reshape(-1)
        if known.sum() < 2:
            raise RuntimeError("not two steps of this rollout have a known reward: real execution or the model is failing")
        self._flat = known
        came = 0
        for samples in super(WeightedBuffer, self).get(batch_size):  # type: ignore[misc]
            if (samples.mask > 0).sum() >= 2:
                came += 1
                yield samples
        if not came:
            raise RuntimeError(f"no minibatch of {batch_size} steps has two of known reward: take larger ones")

    def _get_samples(self, batch_inds: NDArray[np.int64], *args: Any, **kwargs: Any) -> Any:
        samples = super()._get_samples(batch_inds, *args, **kwargs)  # type: ignore[misc]
        mask = self.pad_and_flatten(self._flat[batch_inds].astype(np.float32))  # type: ignore[attr-defined]
        return samples._replace(mask=mask)

    def park(self, slot: int, pays: Any) -> Any:
        """Refuse: a late episode has no place among sequences.

        Raises:
            TypeError: always.
        """
        raise TypeError("RecurrentPPO cannot learn from parked episodes: use LateAnchors with a timeout_s")


class WeightedRecurrentRolloutBuffer(_RecurrentBuffer, RecurrentRolloutBuffer):
    """RecurrentPPO's rollout buffer with weights, and unknown rewards masked out.

    Args:
        venv: the environment that is stepped.
        seed: not used: sb3-contrib chooses the order.
    """


class WeightedRecurrentDictRolloutBuffer(_RecurrentBuffer, RecurrentDictRolloutBuffer):
    """:class:`WeightedRecurrentRolloutBuffer` for Dict observations."""


class WeightedRecurrentPPO(RecurrentPPO):
    """sb3-contrib's RecurrentPPO, which has no argument for its buffer, with weights and without unknown rewards.

    ``WeightedRecurrentPPO("MlpLstmPolicy", sb3.to_vec_env(envs))``; the arguments are RecurrentPPO's.

    Raises:
        TypeError: an environment that :func:`~wmrl_gym.integrations.sb3.to_vec_env` has not made, or rewards that VecNormalize
            scales.
    """

    def _setup_model(self) -> None:
        super()._setup_model()
        own: Any = self.rollout_buffer
        dicts = isinstance(own, RecurrentDictRolloutBuffer)
        buffer = WeightedRecurrentDictRolloutBuffer if dicts else WeightedRecurrentRolloutBuffer
        self.rollout_buffer = buffer(
            own.buffer_size,
            own.observation_space,
            own.action_space,
            own.hidden_state_shape,
            own.device,
            gamma=own.gamma,
            gae_lambda=own.gae_lambda,
            n_envs=own.n_envs,
            venv=learnable(self.env),
        )
