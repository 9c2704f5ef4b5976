"""Arms at equal policy steps and equal executions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.corrections_real import collect, draw, summarise
from benchmarks.equal_budgets import EqualConfig, FewDesigns, environments, train
from wmrl_gym.sandbox import Sandbox
from wmrl_gym.study.config import PPO_SETTINGS
from wmrl_gym.study.training import MeteredSandbox, open_sandbox

SMALL = EqualConfig(
    steps=96,
    executions=24,
    warmup=12,
    tasks=("diabetes",),
    num_envs=16,
    real_envs=8,
    ppo=PPO_SETTINGS | {"n_steps": 1, "batch_size": 16},
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = open_sandbox(1)
    yield made
    made.close()


def designs(path: Path, sandbox: Sandbox) -> FewDesigns:
    return FewDesigns(path, sandbox=sandbox, tasks=SMALL.tasks, workers=1, max_turns=1)


def test_arms_execute_equally_often_and_share_what_they_executed(tmp_path: Path, sandbox: Sandbox) -> None:
    meter = MeteredSandbox(sandbox, workers=1)
    shared = designs(tmp_path / "executed.jsonl", meter)
    runs = {arm: train(arm, SMALL, designs=shared, seed=3) for arm in ("real", "model", "denoise", "recommended")}
    for arm, run in runs.items():
        assert run.executions == pytest.approx(24, abs=8), arm
        assert run.steps[0] == 0
        assert run.steps[-1] == (24 if arm == "real" else 96)
        assert len(run.policies) == 2
    assert meter.runs == len(shared.known) < sum(run.executions for run in runs.values())
    first = runs["model"].policies[0]
    assert all((first[name] == other).all() for name, other in runs["denoise"].policies[0].items())
    before = meter.runs
    again = train("recommended", SMALL, designs=designs(tmp_path / "executed.jsonl", meter), seed=3)
    assert meter.runs == before  # everything is remembered, also by another process
    assert all((again.policies[-1][name] == other).all() for name, other in runs["recommended"].policies[-1].items())


def test_a_benchmark_goes_on_where_it_stopped_and_says_what_it_found(tmp_path: Path) -> None:
    options: dict[str, Any] = {"settings": ("frozen", "learning"), "seeds": (1, 2), "episodes": 2}
    arms = ("mixture", "paper")
    runs = collect(tmp_path, SMALL, arms=arms, **options)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*-*-*.json")}
    assert len(kept) == 2 * 2 * 2
    next(iter(kept)).unlink()
    again = collect(tmp_path, SMALL, arms=arms, **options)
    same = [path for path, at in kept.items() if path.stat().st_mtime_ns == at]
    assert len(same) == len(kept) - 1
    assert [run["reward"] for run in again["frozen"]["paper"]] == [run["reward"] for run in runs["frozen"]["paper"]]
    document = json.loads(json.dumps(summarise(runs, SMALL, episodes=2)))
    paper = document["settings"]["learning"]["paper"]
    assert paper["minus_paper"] == [0.0, 0.0]
    assert not any(name.startswith("cost/") for name in paper["stats"])
    draw(document, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 5_000
    with pytest.raises(ValueError, match="runs with other settings"):
        collect(tmp_path, SMALL, arms=arms, settings=("frozen",), seeds=(1,), episodes=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup": 600, "executions": 50}, "warmup <= executions <= steps, got 600, 50 and"),
        ({"workers": 0}, "workers must be at least 1, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EqualConfig(**options)


def test_an_unknown_arm_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="arm must be one of"):
        environments("magic", SMALL, designs=designs(tmp_path / "none.jsonl", sandbox), seed=0)
