"""OpenAI's Batch API on a real Triton, by OpenAI's own client: kills lose no line, and batches take turns."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hfx.batch.api.lines import CHUNK
from hfx.batch.api.store import COMPLETED, Store
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.published import export_random, export_zoo
from tests.rigs.clients.dialect_calls import RANKER, TALKER
from tests.rigs.files.documents import blocks
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.batch_api import COMPLETIONS, EMBEDDINGS, begun, line, results
from tests.rigs.servers.generation_server import RUNTIMES, SLOTS, WRITERS
from tests.rigs.servers.serve_process import ServeProcess, post, serving

if TYPE_CHECKING:  # it takes two seconds to import
    import openai

pytestmark = pytest.mark.triton
BATCH = "batch_0123456789abcdef"
LINES = 9 * CHUNK
KILLS, KILLS_A_BATCH = 100, 10


@pytest.fixture(scope="module")
def repository(talker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    export_zoo("sentiment-distilbert", folder, "sentiment", "fp32", "onnxruntime")
    export_zoo("similar-mpnet", folder, "similar", "int8", "onnxruntime")
    export_zoo(WRITERS["stories"], folder, "stories", "int8", RUNTIMES["stories"], slots=SLOTS["stories"])
    ranker = tiny_checkpoints.save(tmp_path_factory.mktemp("checkpoint") / RANKER, tiny_checkpoints.cross_encoder())
    export_random(ranker, folder, name=RANKER)
    export_random(talker, folder, name=TALKER)
    return folder


@pytest.fixture(scope="module")
def batches(begun_batch: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the batches of `served`, with a batch that begins when it starts."""
    return Path(shutil.copytree(begun_batch, tmp_path_factory.mktemp("whole") / "batches"))


@pytest.fixture(scope="module")
def served(repository: Path, batches: Path) -> Iterator[ServeProcess]:
    with serving(repository, "--batch-dir", str(batches)) as running:
        yield running


@pytest.fixture(scope="module")
def api(served: ServeProcess) -> Iterator[openai.OpenAI]:
    import openai

    with openai.OpenAI(base_url=f"{served.http_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def run(api: openai.OpenAI, content: bytes, endpoint: str) -> Any:
    """Return a batch once it has ended."""
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    chosen: Any = endpoint  # OpenAI's client names its own endpoints alone
    batch = api.batches.create(input_file_id=file.id, endpoint=chosen, completion_window="24h")
    wait_until(lambda: api.batches.retrieve(batch.id).completed_at, "the batch has ended", 60)
    return api.batches.retrieve(batch.id)


def rows(api: openai.OpenAI, file: str | None) -> list[dict[str, Any]]:
    return [json.loads(text) for text in api.files.content(file).text.splitlines()] if file else []


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (COMPLETIONS, {"model": "stories", "prompt": "Anna was", "max_tokens": 8}),
        (EMBEDDINGS, {"model": "similar", "input": ["A garden.", "A train."]}),
        ("/v1/chat/completions", {"model": TALKER, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 4}),
        ("/rerank", {"query": "A garden.", "texts": ["A train.", "A lovely garden."]}),
        ("/v1/rerank", {"model": RANKER, "query": "A garden.", "documents": ["A train.", "A lovely garden."]}),
        ("/models/sentiment/predict", {"inputs": "What a lovely garden!"}),
        ("/models/stories/v1/completions", {"prompt": "Anna was", "max_tokens": 4}),
        ("/predict", {"inputs": "What a lovely garden!"}),
        ("/v1/responses", {"model": TALKER, "input": "Hi.", "max_output_tokens": 4}),
        ("/classify", {"input": ["What a lovely garden!", "A train."]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_batch_line_has_the_answer_of_the_same_request(
    endpoint: str, body: dict[str, Any], api: openai.OpenAI, served: ServeProcess
) -> None:
    batch = run(api, b"".join(line(number, body, endpoint) for number in range(3)), endpoint)
    status, expected = post(served.http_url + endpoint, body)
    assert batch.request_counts.completed == 3 and batch.error_file_id is None and status == 200
    found = rows(api, batch.output_file_id)
    assert [row["custom_id"] for row in found] == ["row-0", "row-1", "row-2"]
    for row in found:
        answer = row["response"]["body"]
        assert (row["response"]["status_code"], row["error"]) == (200, None)
        if isinstance(answer, dict):  # ids and times are a request's own
            own = ("id", "created", "created_at")
            for each in (answer, expected):
                for message in each.get("output", ()):
                    message["id"] = ""
            answer, expected = ({**each, **dict.fromkeys(own)} for each in (answer, expected))
        assert answer == expected


def test_invalid_lines_become_errors_and_the_other_lines_are_answered(api: openai.OpenAI) -> None:
    good = {"model": "stories", "prompt": "Anna was", "max_tokens": 4}
    bodies: list[Any] = [good, {**good, "model": "none"}, {**good, "model": 7}, {}, {**good, "max_tokens": "x"}, good]
    bodies += [{**good, "prompt": "\ud800"}, {**good, "unknown": 1}, {**good, "model": "similar"}, good]
    batch = run(api, b"".join(line(number, body) for number, body in enumerate(bodies)), COMPLETIONS)
    counts = batch.request_counts
    assert (batch.status, counts.total, counts.completed, counts.failed) == (COMPLETED, 10, 3, 7)
    assert [row["custom_id"] for row in rows(api, batch.output_file_id)] == ["row-0", "row-5", "row-9"]
    errors = {row["custom_id"]: row["response"] for row in rows(api, batch.error_file_id)}
    assert {name: response["status_code"] for name, response in errors.items()} == {
        **dict.fromkeys(("row-2", "row-3", "row-4", "row-6", "row-7", "row-8"), 400),
        "row-1": 404,
    }
    assert all(response["body"]["error"]["message"] for response in errors.values())


def test_a_batch_is_cancelled_while_it_is_in_progress(api: openai.OpenAI) -> None:
    body = {"model": "stories", "prompt": "Anna was", "max_tokens": 200, "ignore_eos": True}
    file = api.files.create(file=("in.jsonl", b"".join(line(number, body) for number in range(500))), purpose="batch")
    import openai

    batch = api.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    wait_until(lambda: api.batches.retrieve(batch.id).request_counts.completed, "something is done", 60)  # type: ignore[union-attr]
    with pytest.raises(openai.ConflictError, match="Cancel"):
        api.files.delete(file.id)
    assert api.batches.cancel(batch.id).status == "cancelling"
    wait_until(lambda: api.batches.retrieve(batch.id).cancelled_at, "the batch is cancelled", 60)
    done = api.batches.retrieve(batch.id)
    found = rows(api, done.output_file_id) + rows(api, done.error_file_id)
    assert [row["custom_id"] for row in found] == [f"row-{number}" for number in range(500)]
    assert 0 < len(rows(api, done.output_file_id)) < 500
    with pytest.raises(openai.ConflictError):
        api.batches.cancel(batch.id)
    assert api.files.delete(file.id).deleted


# Kills


def content() -> bytes:
    """Sampled texts, drawn by the seeds of their lines, and lines that are refused."""
    body = {"model": "stories", "ignore_eos": True, "temperature": 0.9}
    lengths = ["x" if number % 40 == 7 else 48 for number in range(LINES)]
    bodies = ({**body, "prompt": f"Anna was {number}", "max_tokens": each} for number, each in enumerate(lengths))
    return b"".join(line(number, each) for number, each in enumerate(bodies))


@pytest.fixture(scope="module")
def begun_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a batch that has not begun."""
    folder = tmp_path_factory.mktemp("begun")
    begun(folder, content())
    return folder


@pytest.fixture
def undisturbed(api: openai.OpenAI, batches: Path) -> dict[str, bytes]:
    """The results of the batch when nothing is killed, by the ends of their names."""
    wait_until(lambda: status(batches) == COMPLETED, "the batch has ended", 120)
    batch = api.batches.retrieve(BATCH)
    files = {"output.jsonl": batch.output_file_id, "error.jsonl": batch.error_file_id}
    return {name: api.files.content(str(file)).read() for name, file in files.items()}


def status(folder: Path) -> str:
    return str(json.loads((folder / "batches" / BATCH / "batch.json").read_text())["status"])


def parts(folder: Path) -> int:
    return len(list(folder.glob(f"batches/{BATCH}/parts/0*")))


# Linux may list no children while one of them ends or starts.
VICTIMS: dict[str, Callable[[ServeProcess], int]] = {
    "batches": lambda running: wait_until(lambda: running.batches)[-1],
    "front": lambda running: wait_until(lambda: running.fronts)[-1],
    "stub": lambda running: running.stub("stories_stream"),
    "triton": lambda running: running.server,
}


def test_kills_of_each_process_and_ends_of_the_server_leave_the_same_bytes(
    begun_batch: Path, undisturbed: dict[str, bytes], repository: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(begun_batch, tmp_path / "batches")
    options = ("--models", "stories", "--batch-dir", str(folder))
    with serving(repository, *options) as running:
        for done, victim in enumerate(VICTIMS.values()):
            wait_until(lambda done=done: parts(folder) >= done, f"{done} parts", 120)
            os.kill(victim(running), signal.SIGKILL)
        end(running, folder, signal.SIGKILL, -signal.SIGKILL)
    with serving(repository, *options) as running:
        end(running, folder, signal.SIGTERM, 0)
    with serving(repository, *options):
        wait_until(lambda: status(folder) == COMPLETED, "the batch has ended", 120)
    found = results(folder)
    assert found == undisturbed
    ids = [json.loads(text)["custom_id"] for text in b"".join(found.values()).splitlines()]
    assert sorted(ids) == sorted(f"row-{number}" for number in range(LINES))


def end(running: ServeProcess, folder: Path, sent: signal.Signals, code: int) -> None:
    """End `hfx serve` by a signal once it has computed another part of the batch."""
    before = parts(folder)
    wait_until(lambda: parts(folder) > before, "another part", 120)
    running.running.send_signal(sent)
    assert running.end() == code, running.words
    assert status(folder) != COMPLETED


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_a_hundred_kills_leave_the_same_bytes(
    begun_batch: Path, undisturbed: dict[str, bytes], repository: Path, tmp_path: Path
) -> None:
    choice = random.Random(0)
    killed = dict.fromkeys(VICTIMS, 0)
    while (so_far := sum(killed.values())) < KILLS:
        folder = shutil.copytree(begun_batch, tmp_path / f"{so_far}")
        with serving(repository, "--batch-dir", str(folder)) as running:
            while status(folder) != COMPLETED and sum(killed.values()) < so_far + KILLS_A_BATCH:
                name = choice.choices([*VICTIMS], [5, 3, 3, 1])[0]
                time.sleep(choice.uniform(0.0, 4.0))
                with suppress(
                    IndexError, KeyError, ValueError, ProcessLookupError, FileNotFoundError
                ):  # it is being started
                    os.kill(VICTIMS[name](running), signal.SIGKILL)
                    killed[name] += 1
            wait_until(lambda: status(folder) == COMPLETED, "the batch has ended", 300)  # noqa: B023
        assert results(folder) == undisturbed, killed
        shutil.rmtree(folder)
    print(killed)
    assert Store(begun_batch, 1 << 30).batches[BATCH].total == 0  # the copies alone were worked on


def test_the_program_in_batch_api_md_runs(served: ServeProcess) -> None:
    [program] = blocks("docs/batch-api.md", "python")
    program = program.replace("http://127.0.0.1:8000", served.http_url).replace("time.sleep(1)", "time.sleep(0.1)")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [each.split()[0] for each in ran.stdout.splitlines() if each.startswith("row-")] == [
        f"row-{number}" for number in range(100)
    ]
