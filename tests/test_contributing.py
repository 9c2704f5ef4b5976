"""CONTRIBUTING names files that exist, and its glossary stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[tuple[str, ...]]:
    lines = [line for line in section(title).splitlines() if line.startswith("|")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in lines]


@pytest.mark.parametrize(
    "path",
    sorted(set(re.findall(r"`([\w./]+/[\w.]*|\w+\.(?:py|toml|md))`", section("Map of the rooms") + section("Add something")))),
)
def test_what_it_names_exists(path: str) -> None:
    places = (ROOT, ROOT / "wmrl_gym", ROOT / "wmrl_gym" / "envs" / "autoresearch", ROOT / "wmrl_gym" / "world_models")
    assert any((place / path).exists() for place in (*places, ROOT / "wmrl_gym" / "sandbox")), path


def test_requests_and_rooms_are_told_in_tables() -> None:
    assert len(rows("Add something")) >= 25
    assert all("`" in row[-1] for row in rows("Add something") if not row[0].startswith("**"))
    named = " ".join(room for room, _ in rows("Map of the rooms"))
    packages = [each.parent.name for each in (ROOT / "wmrl_gym").glob("*/__init__.py")]
    assert [each for each in packages if each not in named and each != "envs"] == []


def test_the_glossary_has_at_most_fifteen_words() -> None:
    assert 0 < len(rows("Words")) <= 15
