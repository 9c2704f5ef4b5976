"""The example runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import llm_world_model


def test_the_example_predicts_and_executes(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert llm_world_model.main(["--episodes", "3", "--anchors", "0.5", "--weights", str(weights)]) == 0
    said = capsys.readouterr().out
    assert "nothing" in said
    assert "status: " in said
    assert "unanswered=0" in said
