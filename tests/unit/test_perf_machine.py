"""What this machine is."""

from __future__ import annotations

import os

from hfx.perf.machine import machine


def test_the_machine_is_the_one_that_the_system_tells() -> None:
    found = machine()
    assert found.cores == len(os.sched_getaffinity(0)) and found.processor
    assert found.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.versions["numpy"]
