"""Memory of a process, from /proc: what it holds now, and the most that it ever held."""

from __future__ import annotations

from pathlib import Path


def resident_bytes(process: int | str = "self") -> int:
    """What the process holds now; 0 where it has ended."""
    return status(process, "VmRSS")


def peak_bytes(process: int | str = "self") -> int:
    """The most that the process held since it began. (getrusage would count its parent's at the fork.)"""
    return status(process, "VmHWM")


def status(process: int | str, field: str, unit: int = 1024) -> int:
    """A number of the process's status, 0 where it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((unit * int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)
