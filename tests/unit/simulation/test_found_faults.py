"""Faults of the front that simulations have found, each with the steps that matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from hfx.front.settings import Limits
from tests.unit.simulation.network import Network
from tests.unit.simulation.triton import URL, Triton
from tests.unit.simulation.virtual_loop import simulate
from tests.unit.simulation.world import Caller, Front, Request, connected, front

Steps = Callable[[Network, Front, Caller], Awaitable[None]]


def run(steps: Steps, seconds: float = 0.0, slots: int = 9, splits: float = 0.0) -> None:
    """Run `steps` on a connection to a front, before a Triton that takes up to so many `seconds`, with `slots`."""
    network = Network(Random(0), stalls=0.0)
    with front({"upstream": URL, "metrics": URL, "limits": Limits(pause_seconds=3.0)}) as made:

        async def main() -> None:
            Triton(network, ["a"], seconds, 0.0, slots, splits)
            await made.server.startup()
            await steps(network, made, await connected(network, made))
            await made.server.shutdown()
            assert not made.leaks()

        simulate(network, main())
    assert not network.failures


@pytest.mark.parametrize("path", ["/v2/nowhere", "/v2/models/a"])
def test_a_refused_request_whose_body_stops_has_one_answer(path: str) -> None:
    async def steps(network: Network, made: Front, caller: Caller) -> None:
        request = Request("")
        caller.send(request, f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{{".encode())
        await request.done.wait()
        assert request.status in (404, 405)
        await asyncio.sleep(20.0)
        assert caller.is_over  # a second answer would be a failure of the caller

    run(steps)


def test_a_request_that_stops_behind_an_answered_one_is_refused_as_slow() -> None:
    async def steps(network: Network, made: Front, caller: Caller) -> None:
        whole = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for content, status in ((whole, 200), (whole[:-1], 408)):
            request = Request("")
            caller.send(request, content)
            await request.done.wait()
            assert request.status == status

    run(steps)


@pytest.mark.parametrize(
    "follower",
    [
        b"garbage\r\n\r\n",
        b"GET /v2 HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /v2",
        b"POST /v2/models/a/generate HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nx",
    ],
)
@pytest.mark.parametrize("is_half_open", [True, False])
def test_a_malformed_request_takes_no_answer_from_an_earlier_one(
    follower: bytes, is_half_open: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Caller, "eof_received", lambda caller: is_half_open, raising=False)

    async def steps(network: Network, made: Front, caller: Caller) -> None:
        first, second = Request("token-1-"), Request("token-2-")
        body = b'{"text_input": "token-1-"}'
        head = b"POST /v2/models/a/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        caller.send(first, head % len(body) + body + follower)
        caller.send(second, b"")
        await first.done.wait()
        assert first.status == 200 and b"token-1-" in first.body
        await asyncio.sleep(20.0)
        assert second.status in (0, 408)  # an answer of its own, or none
        caller.transport.close()

    run(steps, seconds=8.0)
    assert "Traceback" not in capfd.readouterr().err


def test_a_refusal_of_triton_that_arrives_in_pieces_has_the_status_of_a_whole_one() -> None:
    async def steps(network: Network, made: Front, caller: Caller) -> None:
        for _ in range(20):
            request = Request("")
            head = b"POST /v2/models/a/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            body = b'{"inputs": [{"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["token-1-"]}]}'
            caller.send(request, head % len(body) + body)
            await request.done.wait()
            assert request.status == 503
            assert b"as many requests are in progress as may be" in request.body

    run(steps, slots=0, splits=1.0)
