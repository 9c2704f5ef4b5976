"""The page of ``wmrl report``: whole, without a network, and deaf to what agents write."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.autoresearch.small_tasks import write_small_task
from wmrl_gym.cli import main
from wmrl_gym.report import write_report
from wmrl_gym.study.config import MARKER, StudyConfig

HOSTILE = """</pre></script><script>document.title = 'stolen'</script><img src=x onerror="document.title = 'stolen'">
```python
# </span></pre><script>document.title = 'stolen'</script>
import os, shutil
shutil.copy(os.environ["DATA_DIR"] + "/sample_submission.csv", os.environ["SUBMISSION_PATH"])
print("<script>document.title = 'stolen'</script><a href='https://example.org/'>click</a>")
```"""


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its texts, and what it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.shown = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "link", "input", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag  # nothing that is shown has closed what it stands in

    def handle_data(self, data: str) -> None:
        tag = self._open[-1] if self._open else ""
        self.texts.setdefault(tag, []).append(data)
        if tag not in ("script", "style"):
            self.shown += data

    def fetched(self) -> list[str]:
        """Addresses in attributes."""
        names = ("src", "href", "srcset", "data", "action", "poster")
        return [str(value) for _, given in self.tags for name, value in given.items() if name in names]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of an agent that writes what would run if it were not escaped."""
    root = tmp_path_factory.mktemp("hostile")
    task = write_small_task(root / "small", metric="rmse", kind="regression", larger_is_better=False)
    agent = root / "agent.py"
    agent.write_text(f"def act(observation):\n    return {HOSTILE!r}\n")
    words = ["evaluate", f"{agent}:act", "--tasks", str(task), "--seeds", "2", "--max-turns", "1", "--out", str(root / "run")]
    assert main(words) == 0
    return root / "run"


def relabelled(run: Path, where: Path, label: str) -> Path:
    """A copy of an evaluation, by an agent of another name."""
    shutil.copytree(run, where)
    path = where / "wmrl-evaluation.json"
    marker = json.loads(path.read_text())
    path.write_text(json.dumps(marker | {"label": label}))
    return where


def study(folder: Path, *, seed: int = 0, arms: tuple[str, ...] = ("real", "recommended"), done: int = 2) -> Path:
    """The folder of a comparison, of which some arms are evaluated."""
    from dataclasses import asdict

    folder.mkdir(parents=True)
    (folder / MARKER).write_text(json.dumps(asdict(StudyConfig(arms=arms, seed=seed))))
    for number, arm in enumerate(arms[:done]):
        (folder / arm).mkdir()
        snapshots = [{"seconds": 10.0 * place, "executions": 20 * place} for place in range(4)]
        where = {"execution": 20.0, "prediction": 9.0 + number}
        run = {"seconds": 30.0, "executions": 60, "steps": 600, "where": where, "snapshots": snapshots}
        (folder / arm / "run.json").write_text(json.dumps(run))
        curve = [0.5, 0.6, 0.7 + 0.01 * seed, 0.8]
        final = [{"task": "diabetes", "reward": 0.78 + 0.01 * seed + 0.02 * place, "percentile": 0.6} for place in range(3)]
        (folder / arm / "grades.json").write_text(json.dumps({"curve": curve, "final": final}))
    return folder


def charts(path: Path) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script type="application/json" id="charts">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL
    )
    return dict(json.loads(found))


def test_a_page_needs_no_network_and_runs_its_own_scripts_alone(hostile: Path, tmp_path: Path) -> None:
    other = relabelled(hostile, tmp_path / "other", "</script><script>document.title = 'stolen'</script>")
    path = write_report([hostile, other], tmp_path / "r.html", title="<b>Agents</b> & others")
    page = Page(path)
    assert page.fetched() == []
    assert [tag for tag, _ in page.tags if tag in ("img", "link", "iframe", "object", "embed", "base", "form", "a")] == []
    assert not [name for _, given in page.tags for name in given if name.startswith("on")]
    assert len(page.texts["script"]) == 3  # the charts, Plotly and ours
    (policy,) = (given["content"] for tag, given in page.tags if tag == "meta" and "http-equiv" in given)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    assert page.texts["title"] == ["<b>Agents</b> & others"]
    assert path.stat().st_size < 8_000_000


def test_what_an_agent_wrote_is_shown_word_for_word(hostile: Path, tmp_path: Path) -> None:
    shown = Page(write_report([hostile], tmp_path / "r.html")).shown
    assert "</pre></script><script>document.title = 'stolen'</script><img src=x onerror=" in shown
    assert "# </span></pre><script>document.title = 'stolen'</script>\nimport os, shutil" in shown
    assert "<a href='https://example.org/'>click</a>" in shown  # printed by the script, and fed back


def test_the_leaderboard_has_every_agent_and_orders_them(hostile: Path, tmp_path: Path) -> None:
    other = relabelled(hostile, tmp_path / "b", "<i>better</i>")
    path = tmp_path / "b" / "transcript.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    better = [line | {"percentile": 0.9, "score": 1.0, "medal": "gold"} if line["event"] == "end" else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in better))
    report = write_report([hostile, other], tmp_path / "r.html")
    shown = Page(report).shown
    assert shown.index("<i>better</i>") < shown.index("agent.py:act", shown.index("episodes"))
    assert "90 [90, 90] %" in shown
    assert "2 / 0 / 0" in shown
    (trace,) = charts(report)["leaderboard"]["data"]
    assert trace["y"][-1] == "&lt;i&gt;better&lt;/i&gt;"  # the first row is the highest; Plotly reads no tags in it
    assert trace["x"][-1] == pytest.approx(90.0)


def test_a_run_that_is_still_going_is_shown_as_far_as_it_is(hostile: Path, tmp_path: Path) -> None:
    going = tmp_path / "going"
    shutil.copytree(hostile, going)
    (going / "results.json").unlink()
    lines = (going / "transcript.jsonl").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if b'"event": "end"' in line]
    (going / "transcript.jsonl").write_bytes(b"".join(lines[: ends[1]]) + lines[ends[1]][:20])
    shown = Page(write_report([going], tmp_path / "r.html")).shown
    assert "1 of 2 episodes have not been run; they count in no figure." in shown
    assert "unfinished" in shown


def test_agents_on_other_tasks_are_said_to_be_not_comparable(hostile: Path, tmp_path: Path) -> None:
    other = relabelled(hostile, tmp_path / "other", "other")
    path = other / "wmrl-evaluation.json"
    marker = json.loads(path.read_text())
    marker["settings"]["seeds"] = 1
    path.write_text(json.dumps(marker))
    assert "their means cannot be compared" in Page(write_report([hostile, other], tmp_path / "r.html")).shown


def test_a_comparison_has_curves_and_says_where_the_time_went(tmp_path: Path) -> None:
    path = write_report([study(tmp_path / "demo")], tmp_path / "r.html")
    found = charts(path)
    seconds, executions = ([each for each in found[f"{name}-0"]["data"]] for name in ("seconds", "executions"))
    assert [each["name"] for each in seconds] == ["real execution", "WMRL, recommended"]
    assert seconds[0]["x"] == [0.0, 10.0, 20.0, 30.0]
    assert seconds[0]["y"] == [0.5, 0.6, 0.7, pytest.approx(0.8)]
    assert seconds[0]["error_y"]["array"][-1] == pytest.approx(0.02 / np.sqrt(3))
    assert executions[0]["x"] == [0.0, 20.0, 40.0, 60.0]
    assert {each["name"]: each["x"] for each in found["where-0"]["data"]} == {
        "execution": [20.0, 20.0],
        "prediction": [10.0, 9.0],
    }
    assert "0.800 ± 0.012" in Page(path).shown


def test_comparisons_that_differ_in_their_seed_share_a_band(tmp_path: Path) -> None:
    folders = [study(tmp_path / f"seed-{seed}", seed=seed) for seed in range(3)]
    path = write_report(folders, tmp_path / "r.html")
    band, curve = charts(path)["seconds-0"]["data"][:2]
    assert band["fill"] == "toself"
    assert len(band["x"]) == 2 * len(curve["x"])
    assert curve["y"][-1] == pytest.approx(0.81)
    low, high = band["y"][-1], band["y"][len(curve["x"]) - 1]
    assert low < 0.5 + 1e-9
    assert high - 0.81 == pytest.approx(2 * 0.01 / np.sqrt(3))
    assert "3 seeds" in Page(path).shown


def test_a_comparison_that_is_still_going_says_which_arms_are_missing(tmp_path: Path) -> None:
    shown = Page(write_report([study(tmp_path / "demo", done=1)], tmp_path / "r.html")).shown
    assert "WMRL, recommended: 0 of 1 runs are evaluated so far." in shown
    nothing = Page(write_report([study(tmp_path / "begun", done=0)], tmp_path / "s.html")).shown
    assert "real execution: 0 of 1 runs" in nothing


def test_what_is_no_run_or_damaged_is_named_in_one_line(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = study(tmp_path / "damaged")
    (damaged / "real" / "grades.json").write_text('{"curve": []}')
    torn = tmp_path / "torn"
    shutil.copytree(hostile, torn)
    (torn / "transcript.jsonl").write_text('{"event": "turn"}\n{"event": "session"}\n')
    (tmp_path / "empty").mkdir()
    for folder, told in (
        (tmp_path / "empty", "holds no run: expected a folder of `wmrl evaluate` or `wmrl demo`"),
        (tmp_path / "nowhere", "holds no run"),
        (damaged, "is not an arm of a comparison, or is damaged"),
        (torn, "line 1 is damaged"),
    ):
        assert main(["report", str(folder), "--out", str(tmp_path / "r.html")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert told in line
    assert not (tmp_path / "r.html").exists()


def test_the_command_prints_where_the_page_is(hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(shutil.copytree(hostile, tmp_path / "run"))
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report.html'}\n"
    # The page does not make the folder another one's.
    assert main(["report", str(run)]) == 0


@pytest.mark.needs_chromium
@pytest.mark.parametrize("size", ["1200,900", "390,800"])
def test_a_browser_draws_the_page_and_runs_nothing_of_the_agents(size: str, hostile: Path, tmp_path: Path) -> None:
    other = relabelled(hostile, tmp_path / "other", "<script>document.title = 'stolen'</script>")
    path = write_report([hostile, other, study(tmp_path / "demo")], tmp_path / "r.html", title="Runs")
    dom = browsed(path, size, "--dump-dom", tmp_path=tmp_path)
    assert "<title>Runs</title>" in dom.stdout
    assert "stolen</title>" not in dom.stdout
    assert dom.stdout.count('class="main-svg"') >= 4  # the charts are drawn
    assert "CONSOLE" not in dom.stderr, dom.stderr
    shot = tmp_path / "shot.png"
    browsed(path, size, f"--screenshot={shot}", tmp_path=tmp_path)
    width, height = np.frombuffer(shot.read_bytes()[16:24], ">u4")
    assert f"{width},{height}" == size


def browsed(path: Path, size: str, *options: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Open a page in a browser without a window."""
    program = shutil.which("chromium") or "chromium"
    manner = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=20000")
    where = (f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={size}")
    return subprocess.run(
        [program, *manner, *where, *options, path.as_uri()], capture_output=True, text=True, check=True, timeout=200
    )


def test_neither_needs_what_trains(tmp_path: Path) -> None:
    modules = "wmrl_gym.commands.evaluate, wmrl_gym.commands.report, wmrl_gym.evaluation.run, wmrl_gym.report.page"
    heavy = "torch stable_baselines3 plotly"
    code = f"import sys, {modules}; print([name for name in {heavy!r}.split() if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
