"""Large bodies are parsed in a separate process, which may end at any time."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from hfx.front.large_bodies import LARGEST_JSON
from hfx.triton.front import Front
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.front_rig import GENERATE, INFER, Seen, ask, connect, fronted, post, upstream

TEXT = 'a "day", [in] {the} garden\n' * (LARGEST_JSON // 16)


@pytest.fixture(scope="module")
def triton() -> Iterator[tuple[int, Seen]]:
    with upstream() as found:
        yield found


def infer(*texts: str) -> bytes:
    shape = [len(texts), 1]
    return json.dumps({"inputs": [{"name": "t", "shape": shape, "datatype": "BYTES", "data": texts}]}).encode()


def readers(front: Front) -> list[psutil.Process]:
    children = psutil.Process(front.pid).children(recursive=True)
    return [child for child in children if "hfx.front.large_bodies" in child.cmdline()]


def test_large_bodies_reach_triton_whole_and_are_refused_like_small_ones(triton: tuple[int, Seen]) -> None:
    port, seen = triton
    with fronted(port) as front:
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        assert TEXT.encode() in seen.requests[-1][2]
        assert len(readers(front)) == 1
        status, _, answer = ask(front, post(infer(TEXT)[:-1], INFER))
        assert status == 400 and b"brackets or quotes don't match" in answer
        closed = json.dumps({"text_input": TEXT, "cancel_request": "1"}).encode()
        status, _, answer = ask(front, post(closed, GENERATE))
        assert status == 400 and b"cancel_request is closed to callers" in answer
        [reader] = readers(front)
    wait_until(lambda: not reader.is_running())


def test_a_process_that_has_ended_refuses_one_request(triton: tuple[int, Seen]) -> None:
    with fronted(triton[0]) as front:
        assert ask(front, post(infer(TEXT), INFER))[0] == 200
        for process in readers(front):
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
