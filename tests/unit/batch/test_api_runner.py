"""The run of a batch: lines are sent again while the server is in trouble, and each line gets one result."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.batch.api import progress, runner
from hfx.batch.api.lines import CHUNK
from hfx.batch.api.store import CANCELLED, CANCELLING, COMPLETED, EXPIRED, IN_PROGRESS, Batch, Store
from hfx.front.keys import LABEL_HEADER
from tests.rigs.servers.batch_api import (
    EMBEDDINGS,
    LINES,
    begun,
    content,
    echo,
    line,
    parsed,
    results,
    settings_of,
    work,
)

App = Callable[..., Awaitable[None]]


@pytest.fixture(autouse=True)
def _prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time in which the runner would notice the front's end; a stand-in for the front never dies."""
    monkeypatch.setattr(runner, "NOTICE_SECONDS", 0.01)


def line_of(scope: dict[str, Any]) -> int:
    """Return the number of the line that a request is for, or 0 for none."""
    return int(dict(scope["headers"]).get(b"x-request-id", b"_0").rpartition(b"_")[2])


async def answer(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b'{"error": {"message": "no"}}'})


def test_a_line_has_its_answer_its_id_and_a_seed_of_its_own(tmp_path: Path) -> None:
    odd = line(LINES, {"prompt": "x"}, custom_id="half of a character \ud800")
    batch = begun(tmp_path, content() + odd + line(LINES + 1, {"prompt": "x", "seed": 7}))
    asyncio.run(work(settings_of(tmp_path)))
    rows = parsed(results(tmp_path)["output.jsonl"])
    ids = [row["custom_id"] for row in rows]
    assert ids == [*(f"row-{number}" for number in range(LINES)), "half of a character \ud800", f"row-{LINES + 1}"]
    for number, row in enumerate(rows, 1):
        response = row["response"]
        assert (row["id"], row["error"], response["status_code"]) == (f"batch_req_0123456789abcdef_{number}", None, 200)
        assert response["request_id"] == row["id"] and response["body"]["id"] == f"cmpl-{row['id']}"
        assert response["body"]["created"] == batch.created_at
    seeds = [row["response"]["body"]["asked"]["seed"] for row in rows]
    assert seeds[-1] == 7 and len(set(seeds)) == LINES + 2


def test_lines_of_embeddings_have_no_seed(tmp_path: Path) -> None:
    begun(tmp_path, content(EMBEDDINGS), EMBEDDINGS)
    asyncio.run(work(settings_of(tmp_path)))
    rows = parsed(results(tmp_path)["output.jsonl"])
    assert [row["response"]["body"]["asked"] for row in rows] == [{"prompt": f"{number}"} for number in range(LINES)]


@pytest.mark.parametrize("status", [429, 503, 500, 502, 504, 404, 400])
def test_a_line_that_fails_once_is_sent_again(status: int, tmp_path: Path) -> None:
    seen: Counter[int] = Counter()

    async def troubled(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen[number := line_of(scope)] += 1
        await (answer(send, status) if number % 9 == 1 and seen[number] == 1 else echo(scope, receive, send))

    begun(tmp_path / "troubled", content())
    begun(tmp_path / "sound", content())
    asyncio.run(work(settings_of(tmp_path / "troubled"), app=troubled))
    asyncio.run(work(settings_of(tmp_path / "sound")))
    [left, right] = (parsed(results(tmp_path / name)["output.jsonl"]) for name in ("troubled", "sound"))
    assert [row["custom_id"] for row in left] == [row["custom_id"] for row in right]
    assert [row["response"]["body"]["asked"] for row in left] == [row["response"]["body"]["asked"] for row in right]


def test_a_line_whose_every_try_fails_is_an_error_and_no_other_line_is(tmp_path: Path) -> None:
    tries = 0

    async def breaking(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal tries
        if line_of(scope) == 5:
            tries += 1
            await answer(send, 502)
        else:
            await echo(scope, receive, send)

    begun(tmp_path, content())
    asyncio.run(work(settings_of(tmp_path), app=breaking))
    [row] = parsed(results(tmp_path)["error.jsonl"])
    assert (row["custom_id"], row["response"]["status_code"], row["error"]) == ("row-4", 502, None)
    assert tries == 1 + runner.MOST_TRIES and len(parsed(results(tmp_path)["output.jsonl"])) == LINES - 1


def test_parallel_lines_are_bounded_and_a_failed_line_is_retried_alone(tmp_path: Path) -> None:
    beside: dict[int, list[int]] = {}
    running = 0

    async def counting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal running
        running += 1
        beside.setdefault(number := line_of(scope), []).append(running)
        await asyncio.sleep(0.003 * (number % 5))
        is_bad = number % 10 == 3 and len(beside[number]) == 1
        await (answer(send, 400) if is_bad else echo(scope, receive, send))
        running -= 1

    begun(tmp_path, content())
    asyncio.run(work(settings_of(tmp_path, parallel=3), app=counting))
    del beside[0]  # of /health
    assert max(max(each) for each in beside.values()) == 3
    assert [beside[number][1] for number in range(3, LINES, 10)] == [1] * len(range(3, LINES, 10))
    assert [len(beside[number]) for number in range(1, LINES + 1)] == [1 + (n % 10 == 3) for n in range(1, LINES + 1)]


@pytest.mark.parametrize("body", [b"[" * 2000, b"data: 1", b"", b"[" + b"1," * 2000 + b"1]"])
def test_an_answer_that_is_no_json_or_too_large_is_an_error(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ANSWER_BYTES", 3000)

    async def odd(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if line_of(scope) == 7:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": body})
        else:
            await echo(scope, receive, send)

    begun(tmp_path, content())
    asyncio.run(work(settings_of(tmp_path), app=odd))
    [row] = parsed(results(tmp_path)["error.jsonl"])
    assert (row["custom_id"], row["response"], row["error"]["code"]) == ("row-6", None, "server_error")
    assert len(parsed(results(tmp_path)["output.jsonl"])) == LINES - 1


def test_a_batch_that_is_cancelled_keeps_what_was_answered(tmp_path: Path) -> None:
    batch = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)

    async def cancelling(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if line_of(scope) == CHUNK + 3:
            store.change(store.batches[batch.id], CANCELLING)
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path), store, cancelling))
    done = store.batches[batch.id]
    assert (done.status, done.total, done.completed, done.failed) == (CANCELLED, LINES, CHUNK, LINES - CHUNK)
    assert done.times.keys() == {IN_PROGRESS, CANCELLING, CANCELLED}
    found = results(tmp_path)
    assert [row["custom_id"] for row in parsed(found["output.jsonl"])] == [f"row-{number}" for number in range(CHUNK)]
    errors = parsed(found["error.jsonl"])
    assert [row["custom_id"] for row in errors] == [f"row-{number}" for number in range(CHUNK, LINES)]
    assert {row["error"]["code"] for row in errors} == {"batch_cancelled"}


def test_a_batch_whose_window_ends_keeps_what_was_answered(tmp_path: Path) -> None:
    batch = begun(tmp_path, content(), seconds=2)
    store = Store(tmp_path, 1 << 30)

    async def busy(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await (answer(send, 503) if line_of(scope) > CHUNK else echo(scope, receive, send))

    asyncio.run(work(settings_of(tmp_path), store, busy))
    done = store.batches[batch.id]
    assert (done.status, done.completed, done.failed) == (EXPIRED, CHUNK, LINES - CHUNK)
    errors = parsed(results(tmp_path)["error.jsonl"])
    assert [row["custom_id"] for row in errors] == [f"row-{number}" for number in range(CHUNK, LINES)]
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}


def test_a_line_that_the_server_does_not_take_is_named_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "BUSY_SECONDS", 0.0)
    batch = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)

    async def busy(scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_taken = store.batches[batch.id].errors or line_of(scope) != 3
        await (echo(scope, receive, send) if is_taken else answer(send, 503))
        shown.extend(store.batches[batch.id].errors)

    shown: list[Any] = []
    asyncio.run(work(settings_of(tmp_path), store, busy))
    assert {(error["code"], error["line"]) for error in shown} == {("server_busy", 3)}
    assert store.batches[batch.id].status == COMPLETED and not store.batches[batch.id].errors


def test_batches_take_turns(tmp_path: Path) -> None:
    first = begun(tmp_path, content())
    store = Store(tmp_path, 1 << 30)
    second = replace(first, id="batch_fedcba9876543210", order=first.order + 1)
    store.add_batch(second)
    seen: list[bytes] = []

    async def noting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"])[b"x-request-id"].split(b"_")[2])
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path), store, noting))
    ids = [batch.id.removeprefix("batch_").encode() for batch in (first, second)]
    assert seen == [ids[0]] * CHUNK + [ids[1]] * CHUNK + [ids[0]] * (LINES - CHUNK) + [ids[1]] * (LINES - CHUNK)
    assert {batch.status for batch in store.batches.values()} == {COMPLETED}


def label_of(scope: dict[str, Any]) -> bytes:
    return dict(scope["headers"])[LABEL_HEADER]


def two_labels(folder: Path, **changes: Any) -> tuple[Store, Batch, Batch]:
    """Create a batch of the label `slow` before one of `fast`, with the same lines."""
    first = begun(folder, content(), owner="slow")
    store = Store(folder, 1 << 30)
    second = replace(first, id="batch_fedcba9876543210", order=first.order + 1, **{"owner": "fast", **changes})
    store.add_batch(second)
    return store, first, second


@pytest.mark.parametrize("status", [429, 503])
def test_a_batch_whose_lines_are_not_accepted_delays_no_other(status: int, tmp_path: Path) -> None:
    store, slow, fast = two_labels(tmp_path)

    async def bounded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        accepts = label_of(scope) == b"fast" or store.batches[fast.id].is_finished
        await (echo(scope, receive, send) if accepts else answer(send, status))

    asyncio.run(work(settings_of(tmp_path), store, bounded))
    assert {batch.status for batch in store.batches.values()} == {COMPLETED}
    assert store.batches[fast.id].times[COMPLETED] <= store.batches[slow.id].times[COMPLETED]


def test_a_model_that_never_loads_ends_its_own_batch_alone(tmp_path: Path) -> None:
    store, slow, fast = two_labels(tmp_path, owner="slow")
    store.change(store.batches[slow.id], expires_at=int(time.time()) + 2)

    async def unloaded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_loaded = fast.id.removeprefix("batch_").encode() in dict(scope["headers"])[b"x-request-id"]
        await (echo(scope, receive, send) if is_loaded else answer(send, 503))

    asyncio.run(work(settings_of(tmp_path), store, unloaded))
    assert (store.batches[slow.id].status, store.batches[fast.id].status) == (EXPIRED, COMPLETED)


def test_answers_of_a_chunk_that_was_interrupted_are_kept(tmp_path: Path) -> None:
    """A key with limits gets an answer in each turn, and none of its lines is computed twice."""
    begun(tmp_path, content())
    answered: Counter[int] = Counter()
    allowed = 0

    async def bounded(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal allowed
        allowed += 1
        if allowed % 3:
            answered[line_of(scope)] += 1
            await echo(scope, receive, send)
        else:
            await answer(send, 429)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "MOST_PAUSE_SECONDS", 0.01)
        asyncio.run(work(settings_of(tmp_path), app=bounded))
    rows = parsed(results(tmp_path)["output.jsonl"])
    assert [row["custom_id"] for row in rows] == [f"row-{number}" for number in range(LINES)]
    assert answered == Counter(range(1, LINES + 1))


def test_a_line_that_fails_and_then_is_not_accepted_has_as_many_tries(tmp_path: Path) -> None:
    begun(tmp_path, content())
    tries = 0

    async def failing(scope: dict[str, Any], receive: Any, send: Any) -> None:
        nonlocal tries
        if line_of(scope) != 5:
            await echo(scope, receive, send)
            return
        tries += 1
        await answer(send, 500 if tries % 2 else 429)

    asyncio.run(work(settings_of(tmp_path), app=failing))
    [row] = parsed(results(tmp_path)["error.jsonl"])
    assert (row["custom_id"], row["response"]["status_code"]) == ("row-4", 500)
    assert tries == 2 * runner.MOST_TRIES + 1


def test_labels_take_turns_however_many_batches_one_has(tmp_path: Path) -> None:
    store, slow, _ = two_labels(tmp_path)
    for number in range(5):
        store.add_batch(replace(slow, id=f"batch_000000000000000{number}", order=slow.order - 5 + number))
    seen: list[bytes] = []

    async def noting(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(label_of(scope))
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path), store, noting))
    last = max(position for position, label in enumerate(seen) if label == b"fast")
    assert last < LINES + 2 * CHUNK


def test_a_chunk_of_slow_lines_gives_its_turn_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "TURN_SECONDS", 0.05)
    store, _, _ = two_labels(tmp_path)
    seen: list[bytes] = []

    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen.append(label_of(scope))
        if label_of(scope) == b"slow":
            await asyncio.sleep(0.03)
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path), store, slow))
    assert seen.index(b"fast") < CHUNK
    assert len(seen) == 2 * LINES


def test_answers_that_are_too_large_for_the_memory_are_kept_between_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "TURN_SECONDS", 0.02)
    monkeypatch.setattr(progress, "MOST_ANSWERS", 1000)
    store, *batches = two_labels(tmp_path)
    seen: Counter[bytes] = Counter()

    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        seen[dict(scope["headers"])[b"x-request-id"]] += 1
        await asyncio.sleep(0.02)
        await echo(scope, receive, send)

    asyncio.run(work(settings_of(tmp_path), store, slow))
    assert {batch.status for batch in store.batches.values()} == {COMPLETED}
    assert len(seen) == 2 * LINES and set(seen.values()) == {1}
    for batch in batches:
        rows = parsed(store.content(str(store.batches[batch.id].output_file_id)).read_bytes())
        assert [row["custom_id"] for row in rows] == [f"row-{number}" for number in range(LINES)]
