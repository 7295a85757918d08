"""An error of any system call in the front: keys are read once it is over, and large bodies and the log go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rigs.machine.faults import FAULTS, Ended, Faults
from tests.rigs.machine.tiers import full

KEYS = """
from pathlib import Path
from hfx.front.keys import ApiKeys
from hfx.front.refusals import Refusal

OLD, NEW = "web:first-key-of-tests", "web:second-key-of-tests"

def knows(keys, line):
    try:
        keys.check({b"authorization": b"Bearer " + line.partition(":")[2].encode()})
        return True
    except Refusal:
        return False

def work(arm, folder):
    path = Path(folder) / "keys"
    path.write_text(OLD)
    keys = ApiKeys(str(path))
    path.write_text(NEW)
    arm()
    for _ in range(4):
        keys.reload()
        assert knows(keys, OLD) != knows(keys, NEW)
    disarm()
    lines = [keys.reload() for _ in range(4)]
    assert knows(keys, NEW) and not knows(keys, OLD), lines
    assert not keys.reload()
"""
START = """
from pathlib import Path
from hfx.front.keys import ApiKeys

def work(arm, folder):
    path = Path(folder) / "keys"
    path.write_text("web:first-key-of-tests")
    arm()
    ApiKeys(str(path))
"""
LARGE = """
import asyncio
from hfx.front.large_bodies import LARGEST_JSON, LargeBodies
from hfx.front.refusals import Refusal

async def use(arm):
    bodies = LargeBodies(patience=20.0)
    if IS_RUNNING:
        assert await bodies.read(LARGEST_JSON + 1, len, b"x") == 1
    arm()
    refused = 0
    for size in (2, 300_000):
        try:
            assert await bodies.read(LARGEST_JSON + 1, len, b"x" * size) == size
        except Refusal as refusal:
            assert refusal.status == 503
            refused += 1
    disarm()
    assert refused <= max(1, fired())
    assert await bodies.read(LARGEST_JSON + 1, len, b"x" * 3) == 3
    bodies.close()

def work(arm):
    asyncio.run(use(arm))
"""
LOG = """
import os, time
from types import SimpleNamespace
from hfx.front.response import AccessLog, STDERR

def work(arm, path):
    kept = os.dup(STDERR)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, STDERR)
    os.close(file)
    log = AccessLog(lambda scope, response: f"line {scope} {'x' * 100}")
    arm()
    for number in range(8):
        log.add(number, None)
    while not log._lines.empty():
        time.sleep(0.001)
    time.sleep(0.005)
    disarm()
    for number in (8, 9):
        log.add(number, None)
    while b"line 9" not in open(path, "rb").read():
        time.sleep(0.001)
    time.sleep(0.005)
    os.dup2(kept, STDERR)
    os.close(kept)
"""


def test_a_key_file_that_could_not_be_read_is_read_again(memory: Path) -> None:
    def prepare() -> tuple[str, ...]:
        shutil.rmtree(memory / "keys", ignore_errors=True)
        (memory / "keys").mkdir()
        return (str(memory / "keys"),)

    def check(ended: Ended) -> None:
        assert not ended.error

    with Faults(KEYS) as faults:
        print("keys", faults.sweep(prepare, check, memory))
    with Faults(START) as faults:
        print("keys at the start", faults.sweep(prepare, lambda ended: None, memory))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_running", "faults"),
    [(False, [("EMFILE", False)]), (True, [("EIO", False)]), full(True, FAULTS), full(False, [("EMFILE", True)])],
)
def test_an_error_of_the_pipes_of_the_process_for_large_bodies_refuses_one_request(
    is_running: bool, faults: list[tuple[str, bool]]
) -> None:
    def check(ended: Ended) -> None:
        assert not ended.error

    with Faults(f"IS_RUNNING = {is_running}\n{LARGE}") as running:
        print("large bodies", running.sweep(tuple, check, "pipe:", faults=faults))


def test_the_access_log_goes_on_after_an_error_and_has_whole_lines(memory: Path) -> None:
    path = memory / "log"

    def prepare() -> tuple[str, ...]:
        path.unlink(missing_ok=True)
        return (str(path),)

    def check(ended: Ended) -> None:
        assert not ended.error
        lines = path.read_text().splitlines()
        written = [line for line in lines if "dropped" not in line]
        lost = sum(int(line.split()[0]) for line in lines if "dropped" in line)
        assert all(line.startswith("line ") and line.endswith("x" * 100) for line in written), lines
        assert len(written) + lost == 10, lines

    with Faults(LOG) as faults:
        print("access log", faults.sweep(prepare, check, path))
