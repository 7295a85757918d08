"""Batches on a disk that is full or fails: they wait, report it, and continue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from hfx.batch.api import runner
from hfx.batch.api.lines import cut
from hfx.batch.api.store import BLOCK, COMPLETED, FAILED, IN_PROGRESS, Store
from hfx.batch.plan import write_plan
from hfx.errors import JobError
from tests.rigs.servers.batch_api import LINES, begun, content, parsed, results, settings_of, work


def test_a_batch_without_room_waits_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SPACE_SECONDS", 0.01)
    batch = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)
    room = (1 << 30) - 20 * BLOCK

    async def full_and_freed() -> None:
        store.reserve(room)
        task = asyncio.create_task(work(settings_of(tmp_path), store))
        store.reserve(store_room(store))
        while not store.batches[batch.id].errors:
            await asyncio.sleep(0.001)
        [error] = store.batches[batch.id].errors
        assert error["code"] == "storage_full" and store.batches[batch.id].status == IN_PROGRESS
        store.reserve(-room)
        await task

    asyncio.run(full_and_freed())
    assert store.batches[batch.id].status == COMPLETED and not store.batches[batch.id].errors
    assert len(parsed(results(tmp_path)["output.jsonl"])) == LINES


def store_room(store: Store) -> int:
    """Return all of the room that is left, except for a few records."""
    return store._limit - store._used - BLOCK


def test_a_record_that_can_not_be_written_again_frees_no_room(tmp_path: Path) -> None:
    begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)
    room, record = store_room(store), store.content("file-input.json")
    record.unlink()
    record.mkdir()  # which no file can replace
    with pytest.raises(JobError):
        store.add_file(store.files["file-input"], 10)
    assert store_room(store) == room


def test_a_batch_whose_disk_fails_waits_says_so_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SPACE_SECONDS", 0.01)
    batch = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)
    parts = store.parts(batch).parts
    away = parts.rename(parts.with_name("away"))
    parts.touch()  # where a folder was

    async def broken_and_repaired() -> None:
        task = asyncio.create_task(work(settings_of(tmp_path), store))
        while not store.batches[batch.id].errors:
            await asyncio.sleep(0.001)
        [error] = store.batches[batch.id].errors
        assert error["code"] == "storage_error" and str(tmp_path) not in error["message"]
        parts.unlink()
        away.rename(parts)
        await task

    asyncio.run(broken_and_repaired())
    assert store.batches[batch.id].status == COMPLETED and not store.batches[batch.id].errors
    assert len(parsed(results(tmp_path)["output.jsonl"])) == LINES


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_batch_whose_input_is_gone_or_changed_fails_without_the_servers_paths(is_gone: bool, tmp_path: Path) -> None:
    batch = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)
    path = store.content(batch.input_file_id)
    write_plan(store.parts(batch), cut(path, batch.endpoint, settings_of(tmp_path))[0])
    path.unlink() if is_gone else path.write_bytes(content().replace(b"row-1", b"row-x"))
    asyncio.run(work(settings_of(tmp_path), store))
    [error] = store.batches[batch.id].errors
    assert store.batches[batch.id].status == FAILED and str(tmp_path) not in error["message"]


FULL_DISK = """
import asyncio, sys
from pathlib import Path
from hfx.batch.api import runner
from hfx.batch.api.store import Store
from tests.rigs.servers.batch_api import begun, line, settings_of, work

runner.SPACE_SECONDS = 0.05
folder, filler = Path(sys.argv[1]) / "batches", Path(sys.argv[1]) / "filler"
batch = begun(folder, b"".join(line(number, {"prompt": "x" * 1000}) for number in range(200)))
with filler.open("wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
store = Store(folder, 1 << 30)

async def run():
    task = asyncio.create_task(work(settings_of(folder), store))
    while not store.batches[batch.id].errors:
        await asyncio.sleep(0.01)
    print(store.batches[batch.id].errors[0]["code"], store.batches[batch.id].is_finished)
    filler.unlink()
    await task

asyncio.run(run())
print(store.batches[batch.id].status, store.batches[batch.id].completed)
"""


def test_a_disk_that_is_full_costs_nothing(tmp_path: Path) -> None:
    mounted = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    command = ("unshare", "--mount", "--map-root-user", "sh", "-c", mounted, str(tmp_path))
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a mount of one's own is not permitted: {error}")
    ran = subprocess.run([*command, sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["storage_full False", "completed 200"], ran.stderr
