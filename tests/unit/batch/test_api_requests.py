"""/v1/files and /v1/batches by OpenAI's own client: the front, and the Batch API's process behind it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hfx.batch.api import process as batch_process
from hfx.batch.api.process import BatchProcess
from hfx.errors import JobError
from hfx.triton.front import Front
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.batch_api import COMPLETIONS, EMBEDDINGS, MIB, line, settings_of
from tests.rigs.servers.front_rig import ask, connect, fronted, read_answer, upstream

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.slow
KEYS = {"first": "key-of-the-first-label", "second": "key-of-the-second-label"}


@dataclass(frozen=True)
class Served:
    """A front, its clients by the labels of their keys, and the folder of the files."""

    front: Front
    clients: dict[str, openai.OpenAI]
    folder: Path

    @property
    def api(self) -> openai.OpenAI:
        return self.clients["first"]

    def upload(self, content: bytes, **changes: Any) -> Any:
        return self.api.files.create(**{"file": ("in.jsonl", content), "purpose": "batch", **changes})


@contextmanager
def serving(folder: Path, report: Callable[[str], None] = print, **settings: Any) -> Iterator[Served]:
    import openai

    folder.parent.mkdir(parents=True, exist_ok=True)
    keys = folder.with_name("keys")
    keys.write_text("".join(f"{label}:{key}\n" for label, key in KEYS.items()))
    process = BatchProcess(settings_of(folder, **settings), report)
    of_batches = {"batches": process.url, "background": process.front.fileno(), "background_requests": 4}
    try:
        with upstream() as (port, _), fronted(port, key_file=str(keys), **of_batches) as front:
            process.start()
            clients = {
                label: openai.OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0)
                for label, key in KEYS.items()
            }
            yield Served(front, clients, folder)
            for client in clients.values():
                client.close()
    finally:
        process.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    long = tmp_path_factory.mktemp("batches") / ("x" * 50) / ("y" * 60)  # more than a socket's path may have
    with serving(long) as running:
        yield running


def test_a_file_is_stored_listed_read_and_deleted(served: Served) -> None:
    import openai

    content = bytes(range(256)) * 4000 + b"\r\n--boundary\r\n\xff"
    made = served.upload(content, file=("ünïcode \U0001f600.jsonl", content))
    assert (made.filename, made.bytes, made.purpose) == ("ünïcode \U0001f600.jsonl", len(content), "batch")
    assert served.api.files.retrieve(made.id) == made
    assert made in served.api.files.list().data and made in served.api.files.list(purpose="batch").data
    assert made not in served.api.files.list(purpose="batch_output").data
    assert served.api.files.content(made.id).content == content
    assert served.api.files.delete(made.id).deleted
    for gone in (served.api.files.retrieve, served.api.files.content, served.api.files.delete):
        with pytest.raises(openai.NotFoundError, match="There is no file") as raised:
            gone(made.id)
        assert raised.value.code == "file_not_found"


def test_files_and_batches_of_another_key_label_are_not_found(served: Served) -> None:
    import openai

    file = served.upload(line(1, {}) + b"x")
    batch = served.api.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    other = served.clients["second"]
    assert not other.files.list().data and not other.batches.list().data
    calls = [(each, file.id) for each in (other.files.retrieve, other.files.content, other.files.delete)]
    calls += [(each, batch.id) for each in (other.batches.retrieve, other.batches.cancel)]
    for call, identity in calls:
        with pytest.raises(openai.NotFoundError):
            call(identity)  # type: ignore[operator]
    with pytest.raises(openai.NotFoundError):
        other.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
    with pytest.raises(openai.AuthenticationError):
        served.api.with_options(api_key="no-key-of-this-server").files.list()


def test_a_batch_whose_file_is_wrong_fails_with_the_numbers_of_the_lines(served: Served) -> None:
    import openai

    file = served.upload(line(1, {}) + b"{\n" + line(1, {}) + line(2, {}, url=EMBEDDINGS))
    metadata = {"name": "é" * 512}
    batch = served.api.batches.create(
        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h", metadata=metadata
    )
    assert (batch.status, batch.endpoint, batch.metadata) == ("validating", COMPLETIONS, metadata)
    assert batch.expires_at == batch.created_at + 86_400
    wait_until(lambda: served.api.batches.retrieve(batch.id).failed_at, "the batch has failed")
    batch = served.api.batches.retrieve(batch.id)
    assert batch.errors and batch.errors.data
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("mismatched_endpoint", 4),
    ]
    assert batch.output_file_id is None and batch.error_file_id is None
    with pytest.raises(openai.ConflictError, match="failed"):
        served.api.batches.cancel(batch.id)
    assert served.api.files.delete(file.id).deleted


def test_lists_of_files_and_batches_are_paged(served: Served) -> None:
    import openai

    made = [served.upload(b"%d\n" % number).id for number in range(5)]
    pages = served.api.files.list(limit=2)
    assert [file.id for file in pages.data] == made[:2:-1] and pages.has_more
    assert [file.id for file in pages][:5] == made[::-1]  # of all pages
    after = served.api.files.list(limit=1, after=made[2], order="asc")
    assert [file.id for file in after.data] == [made[3]]
    for query in ({"limit": 0}, {"limit": 10_001}, {"after": "file-none"}, {"extra_query": {"x": "y"}}):
        with pytest.raises(openai.BadRequestError):
            served.api.files.list(**query)  # type: ignore[arg-type]
    batches = [
        served.api.batches.create(input_file_id=made[0], endpoint=COMPLETIONS, completion_window="1m").id
        for _ in range(3)
    ]
    assert [batch.id for batch in served.api.batches.list(limit=1)][:3] == batches[::-1]
    with pytest.raises(openai.BadRequestError):
        served.api.batches.list(limit=101)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"endpoint": "/generate"}, "endpoint"),
        ({"endpoint": 7}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a" * 65: "x"}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": ["a"]}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
        ({"input_file_id": None}, "input_file_id"),
    ],
    ids=str,
)
def test_an_invalid_batch_is_refused_with_the_name_of_its_field(
    fields: dict[str, Any], param: str, served: Served
) -> None:
    import openai

    file = served.upload(line(1, {}))
    asked = {"input_file_id": file.id, "endpoint": COMPLETIONS, "completion_window": "24h", **fields}
    with pytest.raises(openai.BadRequestError) as raised:
        served.api.post("/batches", body=asked, cast_to=object)
    assert raised.value.param == param
    with pytest.raises(openai.NotFoundError) as missing:
        served.api.batches.create(input_file_id="../keys", endpoint=COMPLETIONS, completion_window="24h")
    assert missing.value.code == "file_not_found"


@pytest.mark.parametrize("purpose", ["fine-tune", "batch_output", "vision", ""])
def test_a_file_of_another_purpose_is_refused_and_leaves_nothing(purpose: str, served: Served) -> None:
    import openai

    before = sorted(served.folder.rglob("*"))
    with pytest.raises(openai.BadRequestError) as raised:
        served.upload(b"x", purpose=purpose)
    assert raised.value.param == "purpose" and sorted(served.folder.rglob("*")) == before


FORM = {"content_type": "multipart/form-data; boundary=X", "authorization": f"Bearer {KEYS['first']}"}
PURPOSE = b'--X\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n'


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"nonsense", 400),
        (PURPOSE, 400),
        (PURPOSE + b"--X--\r\n", 400),
        (FILE + b"--X--\r\n", 400),
        (PURPOSE + FILE, 400),
        (PURPOSE + FILE + FILE + b"--X--\r\n", 400),
        (PURPOSE + FILE + PURPOSE * 20 + b"--X--\r\n", 400),
        (PURPOSE.replace(b"batch", b"x" * 2000) + FILE + b"--X--\r\n", 400),
        (PURPOSE + FILE.replace(b'"file"', b'"f' + b"i" * 100_000 + b'"') + b"--X--\r\n", 400),
        (FILE + PURPOSE + b"--X--\r\n", 200),
        (FILE.replace(b"filename=", b"filename*=utf-8''x; filename=") + PURPOSE + b"--X--\r\n", 200),
        (b'--X\r\nContent-Disposition: form-data; name="' + b"a" * 100_000 + b'"\r\n\r\n\r\n--X--\r\n', 400),
        (b"--X\r\n" + b"a" * 100_000 + b": b\r\n\r\n\r\n--X--\r\n", 400),
    ],
    ids=range(14),
)
def test_multipart_parts_may_have_any_order_and_damage_is_a_400(body: bytes, status: int, served: Served) -> None:
    head = "\r\n".join(["POST /v1/files HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"])
    head += "".join(f"\r\n{name.replace('_', '-')}: {value}" for name, value in FORM.items()) + "\r\n\r\n"
    found, _, answer = ask(served.front, head.encode() + body)
    assert found == status, answer
    assert (served.api.files.list(limit=1).data[0].filename == "a") == (status == 200) or status != 200
    if status != 200:
        assert json.loads(answer)["error"]["type"] == "invalid_request_error"


def test_bodies_of_other_kinds_and_paths_that_are_not_there_are_refused(served: Served) -> None:
    key = f"Authorization: Bearer {KEYS['first']}\r\nHost: localhost\r\n"
    cases = [
        ("POST /v1/files", "Content-Type: application/json\r\nContent-Length: 2\r\n", b"{}", 415),
        ("POST /v1/files", "Content-Type: multipart/form-data\r\nContent-Length: 2\r\n", b"{}", 415),
        ("POST /v1/files", "Content-Encoding: gzip\r\nContent-Length: 2\r\n", b"{}", 415),
        ("POST /v1/batches", "Content-Length: 200000\r\n", b"[" * 200_000, 413),
        ("POST /v1/batches", "Content-Length: 60000\r\n", b"[" * 60_000, 400),
        ("POST /v1/batches", "Content-Length: 2\r\n", b"[]", 400),
        ("PUT /v1/files", "Content-Length: 0\r\n", b"", 405),
        ("DELETE /v1/files", "", b"", 405),
        ("GET /v1/files/x/cancel", "", b"", 404),
        ("GET /v1/files/../keys", "", b"", 404),
        ("GET /v1/files?" + "&".join(["a=b"] * 101), "", b"", 400),
        ("GET /v1/files/%2e%2e%2fkeys/content", "", b"", 404),
    ]
    for asked, head, body, status in cases:
        found, _, answer = ask(served.front, f"{asked} HTTP/1.1\r\n{key}{head}\r\n".encode() + body)
        assert found == status and json.loads(answer)["error"]["message"], (asked, found, answer)


def test_a_file_above_the_bound_is_refused_while_it_comes(served: Served) -> None:
    import openai

    with pytest.raises((openai.APIStatusError, openai.APIConnectionError)) as raised:
        served.upload(b"x" * (MIB + 1))
    if isinstance(raised.value, openai.APIStatusError):
        assert (raised.value.status_code, raised.value.type) == (413, "invalid_request_error")
    assert served.upload(b"x" * MIB).bytes == MIB


def test_an_upload_that_is_broken_off_leaves_nothing(served: Served) -> None:
    before = sorted(served.folder.rglob("*"))
    with connect(served.front) as connection:
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['content_type']}\r\n"
        head += f"Authorization: {FORM['authorization']}\r\nTransfer-Encoding: chunked\r\n\r\n"
        piece = PURPOSE + FILE.replace(b"\r\nx\r\n", b"\r\n" + b"x" * 100_000)
        connection.sendall(head.encode() + b"%x\r\n%b\r\n" % (len(piece), piece))
        wait_until(lambda: len(sorted(served.folder.rglob("*"))) > len(before), "the file is being written")
    wait_until(lambda: sorted(served.folder.rglob("*")) == before, "nothing is left")


def test_a_chunked_upload_is_taken(served: Served) -> None:
    with connect(served.front) as connection:
        head = f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM['content_type']}\r\n"
        head += f"Authorization: {FORM['authorization']}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        for piece in (PURPOSE, FILE, b"--X--\r\n"):
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")
        status, _, body = read_answer(connection)
    assert status == 200 and json.loads(body)["bytes"] == 1


def test_an_upload_beyond_the_disk_limit_is_a_507_and_keeps_other_files(tmp_path: Path) -> None:
    import openai

    with serving(tmp_path / "batches", disk=600_000) as served:
        kept = served.upload(b"x" * 300_000)
        with pytest.raises(openai.APIStatusError, match="--batch-disk") as raised:
            served.upload(b"y" * 400_000)
        assert (raised.value.status_code, raised.value.code, raised.value.type) == (507, "storage_full", "server_error")
        assert served.api.files.content(kept.id).content == b"x" * 300_000
        assert served.api.files.delete(kept.id).deleted
        assert served.upload(b"y" * 400_000).bytes == 400_000  # the room of deleted and refused files is free again


def test_a_folder_has_one_server_and_is_for_its_owner_alone(served: Served) -> None:
    assert served.folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(JobError, match="can't be locked"):
        BatchProcess(settings_of(served.folder), print)


def test_a_folder_is_free_again_once_its_process_has_stopped(tmp_path: Path) -> None:
    for _ in range(2):
        process = BatchProcess(settings_of(tmp_path), print)
        process.start()
        process.stop()


def test_a_folder_is_free_again_if_its_sockets_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "front.sock").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        with pytest.raises(JobError, match=r"front\.sock"):
            BatchProcess(settings_of(tmp_path), print)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_that_can_not_be_started_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = [OSError(errno.EAGAIN, "Resource temporarily unavailable")] * 2
    started = batch_process.spawn

    def spawn(*arguments: Any, **options: Any) -> Any:
        if tries:
            raise tries.pop()
        return started(*arguments, **options)

    monkeypatch.setattr(batch_process, "spawn", spawn)
    notes: list[str] = []
    process = BatchProcess(settings_of(tmp_path), notes.append)
    process.start()
    try:
        wait_until(lambda: process._process is not None)
    finally:
        process.stop()
    assert len(notes) == 2 and all("did not start" in note for note in notes)


def test_without_a_batch_folder_the_routes_name_the_missing_option() -> None:
    with upstream() as (port, _), fronted(port) as front:
        for path in ("/v1/files", "/v1/batches", "/v1/files/file-1/content"):
            status, _, body = ask(front, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_url")
            assert "--batch-dir" in json.loads(body)["error"]["message"]


def test_a_process_that_is_killed_is_started_again_and_has_its_files(tmp_path: Path) -> None:
    with serving(tmp_path / "batches") as served:
        kept = served.upload(b"x")
        _kill_process_of(served.folder)
        wait_until(lambda: _is_answered(lambda: served.api.files.content(kept.id).content == b"x"))


def test_a_folder_that_is_removed_is_made_again_and_used(tmp_path: Path) -> None:
    notes: list[str] = []
    with serving(tmp_path / "batches", notes.append) as served:
        served.upload(b"x")
        shutil.rmtree(served.folder)
        wait_until(lambda: _is_answered(lambda: not served.api.files.list().data))
        assert [str(served.folder) in note for note in notes] == [True]
        file = served.upload(line(1, {"prompt": "x"}))
        batch = served.api.batches.create(input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h")
        wait_until(lambda: served.api.batches.retrieve(batch.id).status == "completed")
        with pytest.raises(JobError):  # the new folder is locked, too
            BatchProcess(settings_of(served.folder), print)


def _is_answered(call: Callable[[], bool]) -> bool:
    import openai

    try:
        return call()
    except (openai.APIStatusError, openai.APIConnectionError):
        return False


def _kill_process_of(folder: Path) -> None:
    for entry in Path("/proc").glob("[0-9]*"):
        words = (entry / "cmdline").read_bytes()
        if b"hfx.batch.api" in words and str(folder).encode() in words:
            os.kill(int(entry.name), signal.SIGKILL)


def test_the_routes_are_described_where_they_are_answered(served: Served) -> None:
    key = f"Authorization: Bearer {KEYS['first']}"
    _, _, body = ask(served.front, f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n{key}\r\n\r\n".encode())
    paths = json.loads(body)["paths"]
    assert {"/v1/files", "/v1/files/{file_id}/content", "/v1/batches/{batch_id}/cancel"} <= paths.keys()
    with upstream() as (port, _), fronted(port) as front:
        _, _, body = ask(front, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not {path for path in json.loads(body)["paths"] if "/v1/files" in path or "/v1/batches" in path}
