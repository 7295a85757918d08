"""Triton's memory stays flat when models are unloaded and loaded again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rigs.machine.tiers import full
from tests.rigs.servers.short_servers import started

pytestmark = [pytest.mark.triton, pytest.mark.usefixtures("temporary")]


def anonymous_bytes(pid: int) -> int:
    """Return the private memory of `pid` without a file behind it."""
    [line] = re.findall(r"^Anonymous: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(line) << 10


@pytest.mark.parametrize("cycles", [3, full(100)])
def test_memory_stays_flat_over_loads_and_unloads(writers: Path, cycles: int) -> None:
    """The heaps of Triton's threads fill in some 20 cycles, by 20 MB; a model that stayed would add its own memory."""
    names = ["sentiment", "stories"]
    with started(writers, private=True, models=names) as server:
        memory: list[int] = []
        for cycle in range(cycles):
            for name in names:
                if cycle:
                    server.loaded.load(name)
                server.loaded.release(name)
            memory.append(anonymous_bytes(server.pid))
        print([round(each / 1e6, 1) for each in memory])
        assert server.stubs() == {}
        assert memory[-1] < memory[0] + 40e6
        if cycles > 50:
            assert max(memory[50:]) < 1.1 * max(memory[:50])
