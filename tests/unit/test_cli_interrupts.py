"""Ctrl-C at a bad time: not lost, and not before it can be taken.

In a process of its own: in this one, a signal may be delivered to a thread of any library that other tests have loaded.
"""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED = """
import os, signal
from hfx.cli.interrupts import deferred

done = []
try:
    with deferred():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(True)
    done.append("not interrupted")
except KeyboardInterrupt:
    print(done)
"""
NESTED = """
import signal
from hfx.cli.interrupts import deferred

before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
with deferred(), deferred():
    print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == before)
"""


def out(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.split()


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    assert out(INTERRUPTED) == ["[True]"]


def test_what_was_blocked_before_stays_so() -> None:
    assert out(NESTED) == ["True", "True"]
