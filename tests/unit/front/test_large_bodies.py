"""Large bodies are parsed in a separate process, which may end at any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from hfx.front.large_bodies import COMMAND, LARGEST_JSON, LargeBodies
from hfx.front.refusals import Refusal
from hfx.front.settings import MIB
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import GENERATE, INFER, Seen, ask, connect, fronted, post, stderr_file, upstream

TEXT = 'a "day", [in] {the} garden\n' * (LARGEST_JSON // 16)


@pytest.fixture(scope="module")
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as found:
        yield found


def infer(*texts: str) -> bytes:
    shape = [len(texts), 1]
    return json.dumps({"inputs": [{"name": "t", "shape": shape, "datatype": "BYTES", "data": texts}]}).encode()


def readers(process: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has ended
            found += [child] if COMMAND[-1] in child.cmdline() else []
    return found


def test_large_bodies_reach_triton_whole_and_are_refused_like_small_ones(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front:
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        assert TEXT.encode() in seen.requests[-1][2]
        assert len(readers(psutil.Process(front.pid))) == 1
        status, _, answer = ask(front, post(infer(TEXT)[:-1], INFER))
        assert status == 400 and b"brackets or quotes don't match" in answer
        closed = json.dumps({"text_input": TEXT, "cancel_request": "1"}).encode()
        status, _, answer = ask(front, post(closed, GENERATE))
        assert status == 400 and b"cancel_request is closed to callers" in answer
        [reader] = readers(psutil.Process(front.pid))
    wait_until(lambda: not reader.is_running())


def test_a_process_that_has_ended_refuses_one_request(triton: tuple[int, Seen]) -> None:
    with fronted(triton[0]) as front:
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        for process in readers(psutil.Process(front.pid)):
            process.kill()
        assert ask(front, post(infer(TEXT), INFER))[0] == 503
        assert ask(front, post(infer(TEXT), INFER))[0] == 200


def test_a_caller_that_leaves_does_not_change_the_next_one_s_body(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front:
        for number in range(8):
            with connect(front) as leaving:
                leaving.sendall(post(infer(TEXT * 8, f"leaves {number}"), INFER))
            assert ask(front, post(infer(TEXT, f"stays {number}"), INFER))[0] == 200
            assert f"stays {number}".encode() in seen.requests[-1][2]


def test_callers_that_leave_while_the_process_hangs_leave_nothing_in_the_log(
    triton: tuple[int, Seen], tmp_path: Path
) -> None:
    with stderr_file(tmp_path / "stderr") as log, fronted(triton[0]) as front:
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        [reader] = readers(psutil.Process(front.pid))
        reader.suspend()
        leaving = [connect(front) for _ in range(6)]
        for connection in leaving:
            connection.sendall(post(infer(TEXT * 8), INFER))
            connection.close()
        reader.resume()
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        assert log.read_text() == ""


def test_a_process_that_hangs_is_replaced_and_refuses_the_request_that_it_reads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = set(readers(psutil.Process()))  # of fronts that earlier tests share

    async def read() -> list[Any]:
        bodies = LargeBodies(patience=4)
        assert await bodies.read(LARGEST_JSON + 1, len, b"x") == 1
        [frozen] = set(readers(psutil.Process())) - others
        frozen.suspend()
        calls = [bodies.read(LARGEST_JSON + 1, len, b"x" * size) for size in (2, 3, LARGEST_JSON)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        [new] = set(readers(psutil.Process())) - others
        assert new.pid != frozen.pid
        bodies.close()
        return results

    refused, *results = asyncio.run(read())
    assert isinstance(refused, Refusal) and refused.status == 503
    assert results == [3, LARGEST_JSON]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_memory_of_large_bodies_is_given_back(triton: tuple[int, Seen]) -> None:
    with fronted(triton[0]) as front, ThreadPoolExecutor(24) as callers:
        process, text = psutil.Process(front.pid), "words of a text " * (10 * MIB // 16)
        for path, body in ((INFER, infer("a")), (GENERATE, b"{}")):
            assert ask(front, post(body, path))[0] == 200
        before = process.memory_info().rss
        requests = [post(json.dumps({"text_input": text}).encode())] * 12 + [post(infer(text), INFER)] * 12
        assert {status for status, *_ in callers.map(partial(ask, front), requests)} <= {200, 408, 503}
        triton[1].requests.clear()
        wait_until(lambda: process.memory_info().rss < before + 16 * MIB)
