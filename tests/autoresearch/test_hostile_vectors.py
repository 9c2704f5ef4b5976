"""Hostile replies to imagined environments, several at once, with anchors that are executed and a model that learns from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from benchmarks.fuzz_replies import HOSTILE_CODE, HOSTILE_REPLIES, fenced
from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.envs.autoresearch import AutoResearchText
from wmrl_gym.sandbox import Limits, Sandbox
from wmrl_gym.world_models import OutcomeModel
from wmrl_gym.wrappers.vector import WorldModelVectorEnv

SUBMITS = """
import os
print({0})
sample = open(os.environ["DATA_DIR"] + "/sample_submission.csv").read()
open(os.environ["SUBMISSION_PATH"], "w").write(sample)
"""


@pytest.mark.parametrize("encoder", ["tfidf", "hashing"])
def test_a_vector_of_imagined_environments_survives_every_reply(encoder: str, tmp_path: Path, sandbox: Sandbox) -> None:
    root = write_small_task(tmp_path / "small", metric="mae", kind="regression", larger_is_better=False)
    text = AutoResearchText(root, sandbox=sandbox, limits=Limits(wall_s=2.0, cpu_s=1.0), max_turns=3)
    model = OutcomeModel(8, encoder=encoder, min_executions=2)  # type: ignore[arg-type]
    envs = WorldModelVectorEnv(
        text, model, num_envs=4, anchors=0.1, update_every=16, autoreset_mode=AutoresetMode.SAME_STEP, seed=0
    )
    envs.reset(seed=0)
    corpus = [*HOSTILE_REPLIES, *map(fenced, HOSTILE_CODE)]
    good = [fenced(SUBMITS.format(number)) for number in range(8)]
    order = np.random.default_rng(0).permutation(len(corpus) // 4 * 4).reshape(-1, 4).tolist()
    for replies in [good[:4], good[4:]] + [[corpus[at] for at in row] for row in order] + [good[:4]]:
        observation, reward, _, _, info = envs.step(tuple(replies))
        assert observation in envs.observation_space
        assert np.isfinite(reward).all()
        assert ((reward >= 0) & (reward <= 1)).all()
    assert model.fitted
    assert np.isin(info["reward_valid"], (True, False)).all()
    model.save(tmp_path / "saved")
    envs.close()
