"""The example of a trainer that forms its own group advantages runs, with each of its estimators."""

from __future__ import annotations

import numpy as np
import pytest

from examples import group_advantages

FEW = {"tasks": "diabetes", "steps": 3, "questions": 2, "anchors": 0.25, "warmup": 8, "evaluation-episodes": 4}


@pytest.mark.parametrize("advantages", ["fused", "residual", "grpo"])
def test_it_trains_on_imagined_and_executed_answers(advantages: str) -> None:
    said = group_advantages.main([f"--advantages={advantages}", *(f"--{name}={value}" for name, value in FEW.items())])
    assert said["imagined"] + said["executions"] >= 3 * 2 * 8, "every answer is one or the other"
    assert said["executions"] >= 8 + 0.2 * 3 * 2 * 8, "the first fit's, and a quarter of the answers"
    assert 0.0 <= said["before"] <= 1.0
    assert 0.0 <= said["after"] <= 1.0
    assert np.isfinite(said["kappa"])


def test_an_unknown_estimator_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        group_advantages.main(["--advantages=ppo"])
    assert "must be fused, residual or grpo, got 'ppo'" in capsys.readouterr().err
