"""The examples of other trainers run, on imagined and on real steps."""

from __future__ import annotations

from examples import cleanrl_grpo, cleanrl_ppo_multidiscrete, torchrl_ppo

DYNAMICS = ["--rollouts=2", "--num-envs=4", "--steps=16", "--warmup=100", "--gradient-steps=50", "--evaluation-episodes=2"]


def test_cleanrls_ppo_learns_from_known_rewards_and_waits_for_late_truths() -> None:
    sizes = ["--total-timesteps=192", "--num-envs=16", "--warmup=12", "--anchors=0.25", "--evaluation-episodes=2"]
    said = cleanrl_ppo_multidiscrete.main(sizes)
    assert said["learnt"] == 192
    assert said["left_out"] == 0
    assert said["imagined"] > 0
    assert said["arrived"] > 0
    assert 0.0 <= said["after"] <= 1.0


def test_cleanrls_grpo_learns_from_known_returns_and_waits_for_late_truths() -> None:
    said = cleanrl_grpo.main(["--iterations=3", "--warmup=12", "--anchors=0.25", "--evaluation-episodes=2"])
    assert said["learnt"] == 3 * 32
    assert said["left_out"] == 0
    assert said["imagined"] > 0
    assert said["arrived"] > 0
    assert 0.0 <= said["after"] <= 1.0


def test_torchrls_ppo_trains_in_learned_dynamics() -> None:
    said = torchrl_ppo.main(DYNAMICS)
    assert said["executions"] >= 100
    assert said["imagined"] > 0
    assert said["after"] >= 1.0
