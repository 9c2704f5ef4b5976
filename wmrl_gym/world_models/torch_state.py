"""Keeps settings that a program made for all of torch from changing what our models learn or predict.

Torch has many global settings: no gradients (``no_grad``, ``inference_mode``), a default device, autocast, as many threads as
there are cores. A trainer sets them for its own networks, and steps an environment meanwhile. Each fit of ours runs in
:func:`learning`, and each prediction in :func:`predicting`; both put back what they found.

Two settings are left alone, since they are shared by all threads of a program: the default dtype (tensors are made with a dtype
of their own), and deterministic algorithms (nothing here needs another one).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

_CPU = torch.device("cpu")


class _Process:
    """The process that torch's threads belong to."""

    number = os.getpid()


def use_own_threads() -> None:
    """In a process that was forked from this one, let torch compute on one thread: those of the parent are not there.

    A child that waited for them in its first large product would wait for ever.
    """
    if os.getpid() != _Process.number:
        torch.set_num_threads(1)
        _Process.number = os.getpid()


@contextmanager
def predicting() -> Iterator[None]:
    """For a block that predicts: no gradients, in the dtypes and on the devices that its tensors have."""
    use_own_threads()
    with torch.inference_mode():
        if not _set_elsewhere():
            yield
            return
        with _as_new():
            yield


@contextmanager
def learning() -> Iterator[None]:
    """For a block that fits a network, or makes or loads one that may be fitted later: gradients are possible in it."""
    use_own_threads()
    with torch.inference_mode(False), torch.enable_grad(), _as_new():
        yield


def _set_elsewhere() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda") or torch.get_default_device() != _CPU


@contextmanager
def _as_new() -> Iterator[None]:
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device() != _CPU:
            stack.enter_context(_CPU)
        yield
