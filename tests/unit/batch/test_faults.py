"""An error of any system call ends a batch job with its line, loses no row, and the job resumes to the same bytes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from hfx.batch.api.lines import CHUNK
from hfx.batch.api.store import COMPLETED, Store
from tests.rigs.files.batch_jobs import echo, table
from tests.rigs.machine.faults import Ended, Faults
from tests.rigs.machine.tiers import full
from tests.rigs.servers.batch_api import begun, line, results, settings_of, work

JOB = """
from pathlib import Path
import pandas, pyarrow.parquet  # pyarrow imports pandas at its first array
from tests.rigs.files.batch_jobs import echo

def work(arm, folder, source):
    model = echo()
    arm()
    model.go_on(Path(folder), [source], size=2, keep_columns="all", file_name=FILE)
"""
API = """
import asyncio, threading
from pathlib import Path
from hfx.batch.api import runner
from tests.rigs.servers import batch_api

runner.SPACE_SECONDS = 0.01

def work(arm, folder):
    threading.Timer(0.2, disarm).start()
    arm()
    asyncio.run(batch_api.work(batch_api.settings_of(Path(folder))))
"""

REQUESTS = """
import asyncio, httpx
from pathlib import Path
from hfx.batch.api.app import Api
from hfx.batch.api.store import BLOCK, Store
from tests.rigs.servers import batch_api

async def use(settings, store):
    transport = httpx.ASGITransport(Api(settings, store, asyncio.Event()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        form = {"files": {"file": ("in.jsonl", batch_api.content())}, "data": {"purpose": "batch"}}
        uploaded = await client.post("/v1/files", **form)
        identity = uploaded.json().get("id", "none")
        batch = {"input_file_id": identity, "endpoint": batch_api.COMPLETIONS, "completion_window": "24h"}
        answers = [
            uploaded,
            await client.post("/v1/batches", json=batch),
            await client.post("/v1/files", **form),
        ]
        answers.append(await client.delete(f"/v1/files/{answers[2].json().get('id', 'none')}"))
        try:
            answers.append(await client.get(f"/v1/files/{identity}/content"))
        except Exception:  # the download has begun, and uvicorn ends the connection
            answers.append(httpx.Response(500))
    return [answer.status_code for answer in answers]

def work(arm, folder):
    settings = batch_api.settings_of(Path(folder))
    store = Store(Path(folder), settings.disk)
    arm()
    statuses = asyncio.run(use(settings, store))
    disarm()
    assert {*statuses} <= {200, 404, 500, 507}, statuses
    again = asyncio.run(use(settings, store))
    assert again == [200] * 5, again
    found = Store(Path(folder), settings.disk)
    if fired() > 1:
        return
    assert found.files == store.files, (found.files, store.files)
    objects = [{name: batch.api_object() for name, batch in each.batches.items()} for each in (found, store)]
    assert objects[0] == objects[1], objects
    files = store.files.values()
    assert store._used == sum(file.bytes for file in files) + (len(files) + len(store.batches)) * BLOCK
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", full("jsonl"), "parquet"])
@pytest.mark.parametrize("step", [31, full(1)])
def test_an_error_at_any_call_of_a_job_loses_no_row(step: int, ending: str, memory: Path) -> None:
    rows = [{"text": text} for text in ("a", "", "b\r\n", '"', "é")]
    source = table(memory / f"a.{'csv' if ending == 'parquet' else ending}", rows)
    name = f"predictions.{ending}"
    expected = echo().run(memory / "whole", [source], size=2, keep_columns="all", file_name=name)
    parts = {path.name: path.read_bytes() for path in (memory / "whole" / "parts").iterdir()}
    home = memory / "home"
    folder = home / "job"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(home, ignore_errors=True)
        folder.mkdir(parents=True)
        return str(folder), str(source)

    def check(ended: Ended) -> None:
        output = folder / name
        assert not output.exists() or output.read_bytes() == expected
        assert ended.error or output.exists()
        assert all(path.read_bytes() == parts[path.name] for path in folder.glob("parts/[0-9]*"))
        again = faults.run(home, "EIO", 0, False, str(folder), str(source))
        assert not again.error, again.trace
        assert output.read_bytes() == expected
        left = {"job.json", "plan.jsonl", "parts", "lock", name, "summary.json"}
        assert {path.name for path in folder.iterdir()} == left
        assert {path.name for path in folder.glob("parts/*")} == {*parts}

    with Faults(f"FILE = {name!r}\n{JOB}") as faults:
        print("batch", ending, faults.sweep(prepare, check, home, step))


@pytest.mark.slow
@pytest.mark.parametrize("step", [17, full(1)])
def test_an_error_at_any_call_of_a_batch_of_the_api_loses_no_line(step: int, memory: Path) -> None:
    begun(memory / "begun", b"".join(line(n, {"prompt": f"{n}"}) for n in range(CHUNK + 2)))
    whole = shutil.copytree(memory / "begun", memory / "whole")
    asyncio.run(work(settings_of(whole)))
    expected = results(whole)
    folder = memory / "folder"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(memory / "begun", folder)
        return (str(folder),)

    def check(ended: Ended) -> None:
        store = asyncio.run(work(settings_of(folder)))
        [batch] = store.batches.values()
        assert (batch.status, batch.completed, batch.failed) == (COMPLETED, CHUNK + 2, 0)
        assert results(folder) == expected
        Store(folder, 1 << 30)
        left = {path.name for path in folder.rglob("*") if path.is_file()} - {path.name for path in whole.rglob("*")}
        assert not left

    with Faults(API) as faults:
        print("batch API", faults.sweep(prepare, check, folder, step))


@pytest.mark.slow
@pytest.mark.parametrize("step", [5, full(1)])
def test_an_error_at_any_call_of_an_upload_is_answered_and_takes_no_room(step: int, memory: Path) -> None:
    folder = memory / "folder"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return (str(folder),)

    def check(ended: Ended) -> None:
        assert not ended.error, ended.trace

    with Faults(REQUESTS) as faults:
        print("batch requests", faults.sweep(prepare, check, folder, step))
