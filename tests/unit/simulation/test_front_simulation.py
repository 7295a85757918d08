"""The front under thousands of seeds: callers that err, a Triton that ends, models on demand; and what must hold.

`pytest tests/unit/simulation --seed N` repeats a seed. More of them: `--seeds N`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from hfx.front.settings import Limits
from tests.unit.simulation.loader import COMMANDS, Loader
from tests.unit.simulation.network import Link, Network
from tests.unit.simulation.supervisor import Supervisor
from tests.unit.simulation.triton import PIECES, URL, Triton
from tests.unit.simulation.virtual_loop import Process, simulate
from tests.unit.simulation.world import Caller, Front, Request, connected, front

KEYS = {"free": "free-0123456789abcdef", "quick": "quick-0123456789abcdef"}
RATE, FEW = 2, 0.5  # requests a second of `quick`, and of `few`, which only batches have
ALL_KEYS = {**KEYS, "few": "few-0123456789abcdef"}
FILE_OF_KEYS = f"""
free:{ALL_KEYS["free"]}
quick:{ALL_KEYS["quick"]} requests_per_second={RATE}
few:{ALL_KEYS["few"]} requests_per_second={FEW}
"""
BODY, BULK = 4096, 3000  # bytes: the limit, and a body that is a large part of it
PAUSE, WRITE = 3.0, 4.0  # seconds that a body may pause, and that a caller may read nothing of an answer
MODELS = ("a", "b")
# A request is answered so long after what it has to wait for: loads, restarts, requests before it on its connection.
BOUND = 2.0
HEAD, IDLE = 5.0, 10.0  # seconds until a head is complete, and until the next request
CHUNKED = 0.2  # the share of bodies
ROOM = 1 << 14  # bytes on their way to a caller
LATE = 0.5  # seconds for which a request may be on its way
LOAD = 20.0  # seconds that a request waits at most until its model is loaded
RECOVERY = 40.0  # seconds after which Triton takes requests again, whatever has happened
ANSWERED, STREAMS = ("generate", "infer", "completion", "bulk", "long", "stream", "chunks"), ("stream", "chunks")
KINDS = (*ANSWERED, "health", "metadata", "large", "unknown", "keyless")
HABITS = ("steady", "steady", "pipelining", "slow", "reading", "leaving")


@pytest.fixture(scope="session")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulation") / "keys"
    path.write_text(FILE_OF_KEYS)
    return path


@dataclass
class World:
    """A simulation: the parts, what the seed chose, and the requests so far."""

    network: Network
    front: Front
    triton: Triton
    loader: Loader | None
    limits: Limits
    has_keys: bool
    requests: list[Request] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    drained: float = math.inf  # the time from which the front takes no more requests

    @property
    def random(self) -> Random:
        return self.network.random

    # Callers

    def request(self, kind: str = "", label: str = "") -> tuple[Request, bytes]:
        """Return a new request, and its bytes."""
        random, number = self.random, len(self.requests)
        kind = kind or random.choice(KINDS)
        token, model, statuses = f"token-{number}-", random.choice(MODELS), [200]
        fill = {"bulk": "x" * BULK, "large": "x" * BODY, "long": "long"}.get(kind, "")
        path, content = f"/v2/models/{model}/generate", dict[str, Any](text_input=token + fill)
        tensor = {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": [token]}
        completion: Any = {"model": model, "prompt": token, "max_tokens": 4, "stream": kind == "chunks"}
        path, content = {
            "infer": (f"/v2/models/{model}/infer", {"inputs": [tensor]}),
            "stream": (f"{path}_stream", content),
            "completion": ("/v1/completions", completion),
            "chunks": ("/v1/completions", completion),
            "health": ("/health", {}),
            "metadata": (f"/v2/models/{model}", {}),
            "unknown": ("/v2/nowhere", content),
        }.get(kind, (path, content))
        statuses = {"large": [413], "unknown": [404]}.get(kind, statuses)
        label = label or random.choice([*KEYS]) if self.has_keys and kind != "keyless" else ""
        if self.has_keys and not label and kind != "health":
            statuses = [401]
        request = Request(token, (*statuses,), "" if kind == "health" else label, kind, model)
        self.requests.append(request)
        key = f"Authorization: Bearer {KEYS[label]}\r\n" if label else ""
        head = f"{'POST' if content else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\n{key}"
        return request, f"{head}{self._framed(json.dumps(content) if content else '')}".encode()

    def _framed(self, body: str) -> str:
        """Return the rest of a request: the header about its length, and its body, in chunks now and then."""
        if not body or self.random.random() > CHUNKED:
            return f"Content-Length: {len(body)}\r\n\r\n{body}"
        at = self.random.randint(1, len(body) - 1)
        chunks = "".join(f"{len(chunk):x}\r\n{chunk}\r\n" for chunk in (body[:at], body[at:], ""))
        return f"Transfer-Encoding: chunked\r\n\r\n{chunks}"

    async def call(self, habit: str, count: int) -> None:
        """Send `count` requests as `habit` says."""
        caller: Caller | None = None
        for _ in range(count):
            await asyncio.sleep(self.random.choice((0.0, self.random.random() * 0.5)))
            if caller is None or caller.is_over:
                try:
                    caller = await connected(self.network, self.front)
                    self.callers.append(caller)
                except ConnectionRefusedError:
                    assert self.network.now >= self.drained
                    return
            caller = await getattr(self, f"_{habit}")(caller)
        if caller is not None:
            caller.transport.close()

    async def _steady(self, caller: Caller, kind: str = "", label: str = "") -> Caller | None:
        request, content = self.request(kind, label)
        caller.send(request, content)
        await request.done.wait()
        return None if caller.is_closing else caller

    async def _pipelining(self, caller: Caller) -> Caller | None:
        requests = [self.request(self.random.choice(("generate", "infer", "completion", "health"))) for _ in range(3)]
        for place, (request, content) in enumerate(requests):
            request.waits = place * (self.triton.slow + BOUND)
            request.behind = tuple(before for before, _ in requests[:place])
            caller.send(request, content)
        for request, _ in requests:
            await request.done.wait()
        return None if caller.is_closing else caller

    async def _slow(self, caller: Caller) -> Caller | None:
        request, content = self.request(self.random.choice(("generate", "infer", "completion", "bulk")))
        at = self.random.randint(1, len(content))
        request.waits = self.random.random() * (PAUSE - 1)
        caller.send(request, content[:at])
        await asyncio.sleep(request.waits)
        if not caller.is_over:
            caller.transport.write(content[at:])
        await request.done.wait()
        return None if caller.is_closing else caller

    async def _reading(self, caller: Caller) -> Caller | None:
        """Read the answer late."""
        request, content = self.request(self.random.choice(("long", "long", "stream", "infer")))
        request.waits = self.random.random() * (WRITE - 0.1)
        caller.transport.pause_reading()
        caller.send(request, content)
        await asyncio.sleep(request.waits)
        caller.transport.resume_reading()
        await request.done.wait()
        return None if caller.is_closing else caller

    async def _leaving(self, caller: Caller) -> Caller | None:
        """Leave at any time: by an end, a close, a reset, or without a sign."""
        request, content = self.request(self.random.choice(ANSWERED))
        request.may_fail = True
        caller.send(request, content[: self.random.choice((len(content), self.random.randint(1, len(content))))])
        await asyncio.sleep(self.random.choice((0.0, 0.02, 0.2, 1.0)) * self.random.random())
        way = self.random.choice(("write_eof", "close", "abort", "reset", "fall_silent"))
        request.left = math.inf if way == "fall_silent" else self.network.now
        getattr(caller.transport, way)()
        await request.done.wait()
        return None

    # What must hold

    def check(self, request: Request) -> None:
        """Raise AssertionError unless the answer to a request is its own, and a refusal has its reason."""
        why = self.justified(request)
        assert why, f"{request}: no reason for this"
        if request.status == 200 and request.kind in ANSWERED:
            pieces = PIECES if request.kind in STREAMS else 1
            is_cut = request.kind == "chunks" and b"Triton ended" in request.body and self.was_down(request)
            count = request.body.count(request.token.encode())
            assert count == pieces or (is_cut and count < pieces), f"{request}: not its answer"
        late = self.triton.answered.get(request.token, 0.0) - request.left
        assert late < LATE, f"{request}: answered {late} s after its caller has left"
        if not request.may_fail:
            most = self.triton.slow + BOUND + request.waits + self.delays(request)
            assert request.ended - request.sent <= most, f"{request}: {request.ended - request.sent} s"
        else:
            most = self.triton.slow + BOUND + HEAD + self.delays(request)
            assert request.ended - request.sent <= most, f"{request}: its connection stayed open"

    def justified(self, request: Request) -> bool:
        """Return whether what became of a request has a reason."""
        status, message, was_down = request.status, request.body, self.was_down(request)
        if self.limits.connections < 100 and status in (0, 408):
            return True
        if b"connections are in use" in message:
            return self.open_beside(request) >= self.limits.connections
        if status == 0:
            before = any(each.status not in (200, 0) for each in request.behind)  # its refusal closed the connection
            is_late = request.sent + request.waits >= self.drained - LATE and request.ended >= self.drained
            return request.may_fail or before or is_late or (request.kind in STREAMS and was_down)
        beside = len(self.beside(request))
        has_no_slot = b"as many requests are in progress as may be" in message and beside >= self.triton.slots
        if status == 503:
            is_full = b"as many as are taken" in message and beside >= self.limits.requests
            has_failed = self.loader is not None and self.loader.failed_for(request)
            takes_all = b"take all the memory" in message and 2 * BODY * (beside + 1) >= self.limits.bodies
            return is_full or has_no_slot or takes_all or has_failed or was_down
        is_over_rate = request.label == "quick" and self.used_up(request)
        reasons = {408: request.may_fail, 429: is_over_rate or has_no_slot, 502: was_down}
        return status in request.statuses or reasons.get(status, False)

    def check_rate(self, label: str = "quick") -> None:
        """Raise AssertionError if more requests of a label were answered than its rate allows, in any time."""
        counted = (each for each in self.requests if each.label == label and each.kind != "metadata")
        spans = sorted((each.sent, each.ended) for each in counted if each.status == 200)
        for place, (began, ended) in enumerate(spans):
            for count, (_, end) in enumerate(spans[place:], 1):
                ended = max(ended, end)
                assert count <= RATE + RATE * (ended - began) + 1, f"{count} requests of {label} in {ended - began} s"

    def was_down(self, request: Request) -> bool:
        """Return whether Triton was down while a request was in progress."""
        lag = LATE if request.kind == "health" else 0.0  # of the supervisor's report
        return any(began <= request.ended and request.sent <= end + lag for began, end in self.triton.downs)

    def beside(self, request: Request, slack: float = 0.5) -> list[Request]:
        """Return the other requests that were in progress with a request at some time."""
        return [
            other
            for other in self.requests
            if other is not request and other.sent - slack <= request.ended and request.sent - slack <= other.ended
        ]

    def open_beside(self, request: Request) -> int:
        """Return how many connections of other callers were open during a request, at the front or on their way."""
        began, end = request.sent - LATE, request.ended + LATE
        return sum(caller.opened <= end and began <= caller.closed for caller in self.callers) - 1

    def check_limit(self) -> None:
        """Raise AssertionError if more requests are in progress than may be."""
        admitted = self.front.app.in_progress.admitted
        assert admitted <= self.limits.requests, f"{admitted} requests are in progress"

    def used_up(self, request: Request, slack: float = 0.5) -> bool:
        """Return whether other requests, each counted when it was complete, can have used up the rate of its label."""
        others = (other for other in self.requests if other.label == request.label and other.kind != "metadata")
        spans = [(other.sent, other.ended) for other in others if other is not request and other.sent <= request.ended]
        return any(
            sum(ended >= began for _, ended in spans) > RATE - 1 + RATE * (request.sent - began - slack)
            for span in spans
            for began in span
        )

    def delays(self, request: Request) -> float:
        """Return the seconds that a request may have waited for restarts and loads of models."""
        down = sum(
            min(end, request.ended) - began
            for began, end in self.triton.downs
            if began <= request.ended and request.sent <= end
        )
        if self.loader is None:
            return down
        others = [other.ended - other.sent for other in self.beside(request) if other.model != request.model]
        return down + self.loader.delay(request) + sum(others)  # for which the memory was needed

    async def faults(self) -> None:
        """End Triton at times of the seed."""
        for _ in range(self.random.choice((0, 0, 1, 2))):
            await asyncio.sleep(self.random.random() * 2)
            self.triton.end(self.random.choice((0.05, 0.5, 1.5)))

    async def run(self) -> None:
        """Let the callers call, then check that all is well again, and that nothing is left."""
        random = self.random
        await self.front.server.startup()
        habits = random.choices(HABITS, k=random.randint(2, 6))
        callers = [asyncio.create_task(self.call(habit, random.randint(1, 3))) for habit in habits]
        if random.random() < 0.2:
            callers.append(asyncio.create_task(self.drain(random.random() * 2)))
        await asyncio.gather(self.faults(), *callers)
        if self.drained == math.inf:
            await self.recover()
            await self.drain(0.0)
        await asyncio.sleep(1.0)
        for request in self.requests:
            self.check(request)
        self.check_rate()
        assert not self.front.leaks()
        assert not self.triton.running.total() and not self.triton.connections

    async def recover(self) -> None:
        """Check that all requests are answered again once faults have ended."""
        async with asyncio.timeout(RECOVERY):
            while not self.triton.is_up:
                await asyncio.sleep(0.1)
        await asyncio.sleep(3.0)  # for rates
        calm, self.network.is_calm = len(self.requests), True
        caller: Caller | None = None
        for kind in ANSWERED:
            caller = await self._steady(caller or await connected(self.network, self.front), kind, "free")
        for request in self.requests[calm:]:
            assert request.status == 200, f"{request}: refused after all faults"

    async def drain(self, delay: float) -> None:
        """End the front after `delay` seconds, and check that it has not taken longer than requests in progress may."""
        await asyncio.sleep(delay)
        self.drained = self.network.now
        await self.front.server.shutdown()
        loads = 2 * LOAD if self.loader is not None else 0.0
        assert self.network.now - self.drained < 15.0 + loads, "the front did not end"


def run(seed: int, key_file: Path) -> list[Request]:
    """Simulate a seed, check it, and return its requests."""
    random = Random(seed)
    network = Network(random)
    has_keys, has_loader, has_supervisor = random.random() < 0.5, random.random() < 0.3, random.random() < 0.15
    requests = random.choice((1024, 1024, 2, 3))
    connections = random.choice((100, 100, 100, 100, 3))
    times: dict[str, Any] = {"head_seconds": HEAD, "pause_seconds": PAUSE, "idle_seconds": IDLE, "write_seconds": WRITE}
    limits = Limits(body=BODY, connections=connections, requests=requests, **times)
    settings: dict[str, Any] = {"upstream": URL, "metrics": URL, "playground": False, "limits": limits}
    settings |= {"key_file": str(key_file)} if has_keys else {}
    budget = random.choice((0, 0, 1))
    on_demand = {"commands": f"/{COMMANDS}", "unload_after": 1.0, "load_seconds": LOAD, "memory_budget": budget}
    settings |= on_demand if has_loader else {}
    with front(settings) as made:
        network.links[made.listener] = Link(random.choice((0.001, 0.03)), random.choice((0.0, 0.5)), ROOM)
        triton = Triton(
            network, MODELS, random.choice((0.05, 1.0)), random.choice((0.0, 0.3)), random.choice((99, 99, 1))
        )

        async def main() -> World:
            loader = Loader(network, triton, MODELS) if has_loader else None
            if loader is not None:
                await loader.start()
            if has_supervisor:
                Process(network, Supervisor(network, made, triton).run)
            world = World(network, made, triton, loader, limits, has_keys)
            triton.on_request = world.check_limit
            await world.run()
            return world

        world = simulate(network, main())
    assert all(process.error is None for process in network.processes.values())
    assert not network.failures, network.failures
    return world.requests


def test_a_seed(seeds: Sequence[int], key_file: Path) -> None:
    for seed in seeds:
        try:
            run(seed, key_file)
        except BaseException as error:
            error.add_note(f"pytest {__file__} --seed {seed}")
            raise
