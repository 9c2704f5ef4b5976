"""The example of a progress model runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import manipulation

pytestmark = pytest.mark.needs_gl


def test_experts_teach_a_progress_model_that_judges_real_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manipulation.main(["--episodes=1", "--steps=4", "--judged=2", f"--out={tmp_path}"])
    said = capsys.readouterr().out
    assert "of 3 expert episodes succeeded" in said
    assert "ends at" in said
    assert "as a reward:" in said
    assert (tmp_path / "progress.png").stat().st_size > 10_000
