"""The comparison at equal wall-clock: its verdicts, and how settings are searched."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.executions import load_grid
from benchmarks.speedup import best_known, summarise, verdicts
from benchmarks.speedup_tuning import ARMS, EXECUTES, RATES, SEEDS, Search
from wmrl_gym.study.settings import ArmSettings
from wmrl_gym.study.summary import Point, Row


def row(arm: str, reward: float) -> Row:
    curve = (Point(0.0, 0, 0.7), Point(35.0, 9, reward))
    return Row(arm, (reward, 0.01), (0.5, 0.01), 9, 90, 35.0, None, {"execution": 1.0}, curve)


def seeds(**rewards: list[float]) -> list[list[Row]]:
    return [[row(arm, each[at]) for arm, each in rewards.items()] for at in range(len(next(iter(rewards.values()))))]


def test_bars_are_met_by_differences_that_are_twice_their_error() -> None:
    runs = seeds(real=[0.70, 0.72, 0.71], model=[0.90, 0.70, 0.80], mixture=[0.79, 0.81, 0.80], recommended=[0.80, 0.82, 0.81])
    found = verdicts(runs, seeds(real=[0.80, 0.79]))
    said = {each.bar: each.met for each in found}
    assert said["WMRL above plain mixture by 2 standard errors"]
    assert said["WMRL above real execution by 2 standard errors"]
    assert not said["WMRL above world model alone by 2 standard errors"]
    assert said["ahead of world model alone in the median of 3 seeds"]
    assert said["WMRL at least where real execution is after 10 times the time"]
    assert len(json.loads(json.dumps([asdict(each) for each in found]))) == len(found)
    missed = verdicts(runs, seeds(real=[0.82, 0.81]))[-1]
    assert not missed.met
    assert missed.found == "0.810 ± 0.006 and 0.815 ± 0.005 (2 seeds)"


def test_without_its_own_arm_there_is_no_verdict() -> None:
    assert verdicts(seeds(real=[0.7, 0.8]), []) == []


def test_the_summary_says_where_arms_began_and_what_was_set() -> None:
    found = summarise(seeds(real=[0.70, 0.72], recommended=[0.80, 0.86]), seconds=35.0)["arms"]["recommended"]
    assert found["reward"][0] == pytest.approx(0.83)
    assert found["untrained"] == 0.7
    assert found["gain_over_real"] == [pytest.approx(0.12), pytest.approx(0.02)]
    assert found["settings"]["rate"] > 0


def test_what_is_known_to_be_possible_is_the_best_ever_executed_of_each_task(tmp_path: Path) -> None:
    memory = tmp_path / "executed.jsonl"
    memory.write_text(json.dumps({"key": "diabetes:1", "value": 2.0}) + "\n" + json.dumps({"key": "elsewhere:1", "value": 9.0}))
    assert best_known(memory, ("diabetes", "phishing")) == pytest.approx((2.0 + load_grid("phishing").rewards.max()) / 2)


def test_the_search_climbs_to_the_best_of_each_setting_and_asks_once() -> None:
    asked: list[ArmSettings] = []

    def value(settings: ArmSettings) -> float:
        asked.append(settings)
        return settings.rate + (settings.early == 0.7) - 5 * (settings.entropy == 0.05) + (settings.epochs == 4)

    anchored = Search("mixture", value).run()
    assert (anchored.rate, anchored.entropy, anchored.early, anchored.epochs) == (max(RATES), 0.01, 0.7, 4)
    assert len(asked) == len(set(asked))
    executing = Search("real", value).run()
    assert (executing.rate, executing.epochs, executing.early) == (max(RATES), 4, EXECUTES.early)
    down = Search("model", lambda settings: -settings.rate - settings.learns * (settings.learns != 24))
    assert down.run().rate == min(RATES)
    assert all(each.learns == 24 for each in down.tried)


def test_tuning_uses_seeds_that_no_comparison_reports() -> None:
    assert min(SEEDS) >= 1_000
    assert set(ARMS) == {"real", "model", "mixture", "paper", "recommended"}
