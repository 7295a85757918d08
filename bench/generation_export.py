"""`hfx export` as a user runs it: seconds, the most memory of its processes, and bytes published.

Owns the subprocess and its limit. Knows no tables.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.generation_cases import Model
from bench.generation_memory import watched
from bench.peers.conversions import Conversion

GATE_REFUSED = 4
COMMAND = "import sys; from hfx.cli import main; sys.exit(main())"


class ExportFailed(Exception):
    """The command did something else than publish or refuse; the text says what."""


@dataclass(frozen=True)
class Exported:
    """What an export took, and its last words. `published`: false where the gate refused."""

    took: Conversion
    published: bool
    said: str


def export(model: Model, seconds: float) -> Exported:
    """Export the checkpoint with --quantize for CPU, the gate included, for at most `seconds`. Raises ExportFailed."""
    with tempfile.TemporaryDirectory(prefix="hfx-export-") as repository, tempfile.TemporaryFile() as errors:
        # The gate does all of its work, but random weights have near ties, so whatever it finds is accepted.
        command = ["export", model.checkpoint, "--name", "exported", "--quantize", "--device", "cpu", "--max-drop", "1"]
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *command, "--repository", repository],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        peak, ended = watched(process, seconds)
        taken = time.perf_counter() - begin
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines() or [""]
        if not ended:
            raise ExportFailed(f"stopped after {seconds:.0f} s, at {peak / 1e9:.1f} GB, in: {said[-1].strip()}")
        if process.returncode not in (0, GATE_REFUSED):
            raise ExportFailed(f"code {process.returncode}: {said[-1].strip()}")
        size = sum(path.stat().st_size for path in Path(repository).rglob("*") if path.is_file())
        return Exported(Conversion(taken, peak, size), process.returncode == 0, said[-1].strip())
