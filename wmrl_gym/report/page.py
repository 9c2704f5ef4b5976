"""Puts the sections of several runs into one page that needs no network and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from wmrl_gym.evaluation.run import MARKER as EVALUATION
from wmrl_gym.files import write_text
from wmrl_gym.report.evaluations import evaluation_sections
from wmrl_gym.report.studies import study_sections
from wmrl_gym.study.config import MARKER as STUDY

_HERE = Path(__file__).parent


class NotARun(ValueError):
    """A folder holds no run."""


def write_report(runs: Sequence[str | Path], path: str | Path, *, title: str = "") -> Path:
    """Write a page about evaluations and comparisons, of which some may still be going.

    Args:
        runs: folders that ``wmrl evaluate`` or ``wmrl demo`` have written.
        path: the file to write.
        title: of the page; "" for the names of the runs.

    Raises:
        NotARun: a folder holds no run.
        ValueError: a run cannot be read.
        gymnasium.error.DependencyNotInstalled: the extra ``report`` is not installed.
    """
    folders = list(dict.fromkeys(Path(run) for run in runs))
    if not folders:
        raise NotARun("name at least one folder of a run")
    evaluations = [folder for folder in folders if (folder / EVALUATION).is_file()]
    studies = [folder for folder in folders if (folder / STUDY).is_file() and folder not in evaluations]
    others = [str(folder) for folder in folders if folder not in evaluations and folder not in studies]
    if others:
        raise NotARun(f"{', '.join(others)} holds no run: expected a folder of `wmrl evaluate` or `wmrl demo`")
    sections: dict[str, Any] = {"evaluation": None, "studies": []}
    if evaluations:
        sections["evaluation"] = evaluation_sections(evaluations)
    if studies:
        sections["studies"] = study_sections(studies)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, _page(sections, title or ", ".join(folder.name for folder in folders)))
    return target


def _page(sections: dict[str, Any], title: str) -> str:
    try:
        import jinja2
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        message = "plotly is not installed, run `pip install 'wmrl-gym[report]'`"
        raise gym.error.DependencyNotInstalled(message) from error
    charts = _charts(sections)
    scripts = [get_plotlyjs(), (_HERE / "page.js").read_text(encoding="utf-8")] if charts else []
    # A script's end within it would end it; none of ours has one, but Plotly's is not ours.
    scripts = [script.replace("</script", "<\\/script") for script in scripts]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html").render(
        title=title,
        written=time.strftime("%Y-%m-%d %H:%M"),
        styles=(_HERE / "page.css").read_text(encoding="utf-8") + _code_styles(),
        policy="; ".join(
            ("default-src 'none'", f"script-src {_allowed(scripts)}", "style-src 'unsafe-inline'", "img-src data: blob:")
        ),
        scripts=scripts,
        charts=_in_a_page(charts),
        **sections,
    )


def _charts(sections: dict[str, Any]) -> dict[str, Any]:
    """All charts, by the id of their place in the page."""
    found: dict[str, Any] = {}
    for section in (sections["evaluation"], *sections["studies"]):
        if section is not None:
            found |= section["charts"]
    return found


def _in_a_page(charts: dict[str, Any]) -> str:
    """JSON that can stand in a page: no character of it has a meaning there."""
    text = json.dumps(charts)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _allowed(scripts: Sequence[str]) -> str:
    """The scripts that a browser may run: those whose hashes are named, and no other."""
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def _code_styles() -> str:
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".code")
    dark = HtmlFormatter(style="monokai").get_style_defs(".code")
    return (
        f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n.code, .code .err {{ background: none; border: none }}\n"
    )
