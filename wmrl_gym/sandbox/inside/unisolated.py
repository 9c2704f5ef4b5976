"""The supervisor of a program that is only limited, not isolated."""

from __future__ import annotations

import array
import os
import shutil
import tempfile

from .enclosures import Descendants
from .supervisor import serve, start_program


def main(channel: int, host: int) -> None:
    """Serve one run in a temporary folder, and leave nothing of it behind, even if the host is gone."""
    workspace = os.path.realpath(tempfile.mkdtemp(prefix="wmrl-"))
    os.environ.update(HOME=workspace, TMPDIR=workspace, SUBMISSION_PATH=f"{workspace}/submission.csv")
    os.environ.setdefault("DATA_DIR", workspace)
    enclosure = Descendants(workspace)
    try:
        serve(channel, host, enclosure, start_program(enclosure, array.array("Q")))
    except EOFError:
        return
    finally:
        enclosure.kill()
        shutil.rmtree(workspace, ignore_errors=True)
