"""The examples of dynamics models run."""

from __future__ import annotations

import pytest

from examples import ensemble_dynamics, pendulum_sac


def test_the_ensemble_is_fitted_measured_and_stepped(capsys: pytest.CaptureFixture[str]) -> None:
    ensemble_dynamics.main(["--env", "InvertedPendulum-v5", "--steps", "420", "--held-out", "100", "--gradient-steps", "100"])
    said = capsys.readouterr().out
    assert "termination F1" in said
    assert "promises broken: none" in said
    assert "imagined steps a second" in said


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "InvertedPendulum-v5"])
def test_each_arm_of_the_pendulum_executes_as_many_real_steps(env_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"real-steps": 50, "warmup": 25, "gradient-steps": 1, "evaluation-episodes": 1, "update-every": 20, "num-envs": 4}
    pendulum_sac.main(["--env", env_id, *(f"--{name}={value}" for name, value in few.items())])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(("SAC in", "plain SAC"))]
    executed = [int(row[-4]) for row in rows if row[-1].isdigit()]
    assert len(executed) == 3
    assert all(50 <= steps <= 60 for steps in executed)
