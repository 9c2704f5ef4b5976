"""Steps mbrl-lib's ``ModelEnv`` for :mod:`benchmarks.world_models`, in an interpreter of its own.

It reads a line of json for each measurement, ``{"batch": 255, "calls": 20}``, and answers with the seconds that each call took.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mbrl.models import GaussianMLP, ModelEnv, OneDTransitionRewardModel


def never(action: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """No episode ends: mbrl-lib takes a hand-written function for that."""
    return torch.zeros(len(after), 1, dtype=torch.bool)


def main(settings: dict[str, Any]) -> None:
    """Answer until the input ends."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    n_observation, n_action = settings["n_observation"], settings["n_action"]
    rng = np.random.default_rng(0)
    network = GaussianMLP(
        n_observation + n_action,
        n_observation + 1,
        "cpu",
        num_layers=settings["layers"],
        ensemble_size=settings["members"],
        hid_size=settings["width"],
        propagation_method="random_model",
    )
    model = OneDTransitionRewardModel(network, normalize=True)
    model.input_normalizer.update_stats(rng.standard_normal((1000, n_observation + n_action)).astype(np.float32))
    spaces = SimpleNamespace(observation_space=None, action_space=None)
    env = ModelEnv(spaces, model, never, generator=torch.Generator())
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        n = asked["batch"]
        state = env.reset(rng.standard_normal((n, n_observation)).astype(np.float32))
        action = rng.standard_normal((n, n_action)).astype(np.float32)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(asked["calls"]):
            _, _, _, state = env.step(action, state, sample=True)
        took = {"cpu_s": (time.process_time() - cpu) / asked["calls"], "wall_s": (time.perf_counter() - wall) / asked["calls"]}
        print(json.dumps(took), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
