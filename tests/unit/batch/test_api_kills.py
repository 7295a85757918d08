"""Kills of the Batch API's process before any file change: the results have the same bytes, each line once."""

from __future__ import annotations

import asyncio
import json
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.api.lines import CHUNK
from hfx.batch.api.store import COMPLETED, Store
from tests.rigs.machine.faults import Killer
from tests.rigs.machine.tiers import full
from tests.rigs.servers.batch_api import begun, echo, line, results, settings_of, work

WORK = """
import asyncio
from pathlib import Path
from tests.rigs.servers import batch_api

def work(arm, folder):
    arm()
    asyncio.run(batch_api.work(batch_api.settings_of(Path(folder))))
"""
LINES = 2 * CHUNK + 3
BAD = (5, CHUNK + 2)  # places of lines that the server refuses


def content() -> bytes:
    return b"".join(line(n, {"prompt": f"text {n}", **({"status": 400} if n in BAD else {})}) for n in range(LINES))


@pytest.mark.slow
@pytest.mark.parametrize("step", [3, full(1)])
def test_a_kill_before_any_file_change_does_not_change_the_results(step: int, tmp_path: Path) -> None:
    begun(tmp_path / "begun", content())
    whole = shutil.copytree(tmp_path / "begun", tmp_path / "whole")
    asyncio.run(work(settings_of(whole)))
    expected = results(whole)
    assert [json.loads(text)["custom_id"] for text in expected["output.jsonl"].splitlines()] == [
        f"row-{n}" for n in range(LINES) if n not in BAD
    ]
    assert [json.loads(text)["custom_id"] for text in expected["error.jsonl"].splitlines()] == [f"row-{n}" for n in BAD]
    kills = 0
    with Killer(WORK) as killer:
        for at in count(1, step):
            folder = shutil.copytree(tmp_path / "begun", tmp_path / f"{at}")
            if killer.kill(at, str(folder)) is not None:
                break
            kills += 1
            killer.kill(3, str(folder))  # and once more, early
            asyncio.run(work(settings_of(folder)))
            assert results(folder) == expected, at
            [batch] = Store(folder, 1 << 30).batches.values()
            assert (batch.status, batch.completed, batch.failed) == (COMPLETED, LINES - len(BAD), len(BAD))
            shutil.rmtree(folder)
    assert kills > 30 / step


def test_a_damaged_part_is_computed_again(tmp_path: Path) -> None:
    begun(tmp_path / "begun", content())
    whole = shutil.copytree(tmp_path / "begun", tmp_path / "whole")
    asyncio.run(work(settings_of(whole)))
    store = Store(tmp_path / "begun", 1 << 30)
    [batch] = store.batches.values()
    with pytest.raises(TimeoutError):
        asyncio.run(_for_a_moment(store))
    parts = store.parts(batch)
    assert 0 in parts.done()
    part = parts.part(0, ".jsonl")
    part.write_bytes(part.read_bytes().replace(b"text 1", b"text 2"))
    asyncio.run(work(settings_of(tmp_path / "begun")))
    assert results(tmp_path / "begun") == results(whole)


@pytest.mark.parametrize("plan", [None, b"", b'{"source": 0}\n'])
def test_a_batch_whose_plan_is_missing_or_damaged_keeps_its_parts(plan: bytes | None, tmp_path: Path) -> None:
    """Earlier versions wrote no plan, and cut the same chunks again at each start."""
    text = b"\n \n".join(content().splitlines())  # lines that are blank stand between the requests
    begun(tmp_path / "begun", text)
    whole = shutil.copytree(tmp_path / "begun", tmp_path / "whole")
    asyncio.run(work(settings_of(whole)))
    store = Store(tmp_path / "begun", 1 << 30)
    [batch] = store.batches.values()
    with pytest.raises(TimeoutError):
        asyncio.run(_for_a_moment(store))
    path = store.parts(batch).path / "plan.jsonl"
    path.unlink() if plan is None else path.write_bytes(plan)
    sent: list[bytes] = []

    async def noting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        sent.append(dict(scope["headers"]).get(b"x-request-id", b""))
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path / "begun"), app=noting))
    assert results(tmp_path / "begun") == results(whole)
    first = [f"batch_req_0123456789abcdef_{2 * number + 1}".encode() for number in range(CHUNK)]
    assert sent and not {*first} & {*sent}
    assert not path.exists()


async def _for_a_moment(store: Store) -> None:
    """Work until the first part exists."""
    [batch] = store.batches.values()
    folder = store.parts(batch)
    task = asyncio.create_task(work(settings_of(folder.path.parents[1]), store))
    while 0 not in folder.done():
        await asyncio.sleep(0.001)
    task.cancel()
    raise TimeoutError
