"""What this machine is."""

from __future__ import annotations

import os

from hfx.perf.machine import gpu_names, machine


def test_the_machine_is_the_one_that_the_system_tells() -> None:
    found = machine()
    assert found.cores == len(os.sched_getaffinity(0)) and found.processor
    assert found.memory == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert found.versions["numpy"]


def test_gpus_are_named_without_their_ids() -> None:
    listed = (
        "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
        "  MIG 1g.18gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-000000000000)\n"
    )
    assert gpu_names(listed) == ("NVIDIA H200", "MIG 1g.18gb")
    assert gpu_names("No devices found.") == ()
