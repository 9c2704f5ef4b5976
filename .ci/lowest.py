"""Prints the lowest versions that pyproject.toml declares for the package itself, as requirements: ``numpy==1.26``.

Left out are torch and what hangs on it, which are installed in one version everywhere. With an argument, the constraints that
constraints.txt has for everything else, for the tools that test them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TORCH = {"torch", "transformers"}
ROOT = Path(__file__).parent.parent


def lowest() -> dict[str, str]:
    """The floor of each dependency, with its marker."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found = [re.fullmatch(r"(?P<name>[\w.-]+)>=(?P<version>[\w.]+)(?P<marker>;.*)?", line) for line in declared]
    wrong = [line for line, match in zip(declared, found, strict=True) if match is None]
    if wrong:
        raise SystemExit(f"dependencies must read name>=version, these do not: {wrong}")
    return {m["name"]: f"{m['name']}=={m['version']}{m['marker'] or ''}" for m in found if m and m["name"] not in TORCH}


if __name__ == "__main__":
    floors = lowest()
    if sys.argv[1:]:
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        print(*(line for line in pins if re.split(r"[=<>;]", line)[0].lower() not in floors), sep="\n")
    else:
        print(*floors.values(), sep="\n")
