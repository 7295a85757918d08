"""Ctrl-C at a bad time: not lost, and not before it can be taken."""

from __future__ import annotations

import os
import signal

import pytest

from hfx.cli.interrupts import deferred


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    done = []

    def work() -> None:
        with deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]


def test_what_was_blocked_before_stays_so() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with deferred(), deferred():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
