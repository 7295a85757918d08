"""Batches of several keys beside callers, by seeds: each line has its answer, and no key delays another's batch."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hfx.batch.api.app import Api
from hfx.batch.api.lines import CHUNK
from hfx.batch.api.runner import Runner
from hfx.batch.api.settings import ApiSettings
from hfx.batch.api.store import BLOCK, COMPLETED, Batch, Store, StoredFile
from hfx.front.settings import Limits
from tests.unit.simulation.network import Network
from tests.unit.simulation.test_front_simulation import ALL_KEYS, FEW, MODELS, World, key_file  # noqa: F401
from tests.unit.simulation.triton import URL, Triton
from tests.unit.simulation.virtual_loop import YEAR_2033, simulate
from tests.unit.simulation.world import Request, connected, front

API, ENDPOINT = "batches", "/v1/completions"
FRONT = ("127.0.0.1", 8001)
MIB = 1 << 20
TURN_SECONDS = 5.0  # after which a batch begins no further line while other labels wait
KEYLESS = "keyless"  # a label whose key was removed: its batches wait until there is one again


class Batches:
    """The process of batches, and a batch for each of the labels in `lines`, with so many lines. Lines have tokens."""

    def __init__(self, folder: Path, lines: dict[str, int], parallel: int) -> None:
        self.settings = ApiSettings(str(folder), 64 * MIB, MIB, 200, 1 << 16, parallel)
        self.store, self.lines, self.changed = Store(folder, 64 * MIB), lines, asyncio.Event()
        if KEYLESS in lines:
            self.store.content("file-1").write_bytes(self.content(KEYLESS))
            self.store.add_file(StoredFile("file-1", KEYLESS, "in.jsonl", "batch", len(self.content(KEYLESS)), 1))
            expires_at = int(YEAR_2033) + 86_400
            self.store.add_batch(Batch("batch_1", KEYLESS, ENDPOINT, "file-1", "24h", expires_at, 1))

    def content(self, label: str) -> bytes:
        """Return the input of a batch."""
        rows = (self._line(label, number) for number in range(self.lines[label]))
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)

    def _line(self, label: str, number: int) -> dict[str, Any]:
        body = {"model": MODELS[number % 2], "prompt": self.token(label, number), "max_tokens": 4}
        return {"custom_id": f"{number}", "method": "POST", "url": ENDPOINT, "body": body}

    def token(self, label: str, number: int) -> str:
        """Return the token of a line."""
        return f"token-{[*self.lines].index(label)}{number:03}-"

    async def run(self) -> None:
        """Run the batches, by the program's own runner."""
        url = f"http://{FRONT[0]}:{FRONT[1]}"
        async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as client:
            await Runner(self.settings, self.store, self.changed, client).run()

    async def serve(self, network: Network) -> None:
        """Take requests that the front forwards."""
        options: Any = {"lifespan": "off", "interface": "asgi3", "log_config": None, "access_log": False}
        config, state = uvicorn.Config(Api(self.settings, self.store, self.changed), **options), ServerState()
        config.load()
        await network.create_unix_server(lambda: HttpToolsProtocol(config, state, {}), API)

    def check(self, label: str, batch: Batch, output: bytes) -> None:
        """Raise AssertionError unless each line of a batch has its own answer, in order."""
        assert (batch.status, batch.completed, batch.failed) == (COMPLETED, self.lines[label], 0), batch
        texts = [json.loads(row)["response"]["body"]["choices"][0]["text"] for row in output.splitlines()]
        assert texts == [self.token(label, number) for number in range(self.lines[label])]


async def answer(world: World, label: str, head: str, body: bytes = b"") -> bytes:
    """Return the answer to a request with the key of a label, which is sent until its rate allows it."""
    while True:
        caller, request = await connected(world.network, world.front), Request("")
        key = f"Authorization: Bearer {ALL_KEYS[label]}\r\nContent-Length: {len(body)}\r\n\r\n"
        caller.send(request, f"{head}\r\nHost: localhost\r\n{key}".encode() + body)
        await request.done.wait()
        caller.transport.close()
        assert request.status in (200, 429), request
        if request.status == 200:
            return request.body
        assert label == "few", "a label without a rate was refused"
        await asyncio.sleep(1.0)


def upload(content: bytes) -> tuple[str, bytes]:
    """Return the head and the body of a request that stores a file."""
    part = b"--B\r\nContent-Disposition: form-data; name="
    form = b'%b"purpose"\r\n\r\nbatch\r\n%b"file"; filename="in.jsonl"\r\n\r\n%b\r\n--B--\r\n'
    return "POST /v1/files HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=B", form % (part, part, content)


async def leave_an_upload(world: World) -> None:
    """Send a part of a file, and leave."""
    caller = await connected(world.network, world.front)
    head, body = upload(b"x" * 5000)
    key = f"Authorization: Bearer {ALL_KEYS['free']}\r\nContent-Length: {len(body)}\r\n\r\n"
    content = f"{head}\r\nHost: localhost\r\n{key}".encode() + body
    caller.transport.write(content[: world.random.randint(1, len(content) - 1)])
    await asyncio.sleep(world.random.random())
    caller.transport.abort()


async def finished(world: World, batches: Batches, label: str, slow: float) -> None:
    """Create the batch of a label, and wait for its end no longer than its own lines and the turns of others take."""
    await asyncio.sleep(5 * world.random.random())
    file = json.loads(await answer(world, label, *upload(batches.content(label))))
    fields = {"input_file_id": file["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    batch = json.loads(await answer(world, label, "POST /v1/batches HTTP/1.1", json.dumps(fields).encode()))
    began, lines = world.network.now, batches.lines
    steps = 4 + lines[label] // CHUNK
    turns = [min(TURN_SECONDS, lines[other] * slow) + 1.0 for other in lines if other != label]
    most = 5.0 + steps * sum(turns) + lines[label] * (slow + (1 / FEW if label == "few" else 0.0))
    while not batches.store.batches[batch["id"]].is_finished:
        await asyncio.sleep(0.1)
        delay = 2 * sum(end - at for at, end in world.triton.downs) + 5 * len(world.triton.downs)
        assert world.network.now - began <= most + delay, f"the batch of {label} is not complete after {most} s"
    ended = batches.store.batches[batch["id"]]
    output = await answer(world, label, f"GET /v1/files/{ended.output_file_id}/content HTTP/1.1")
    batches.check(label, ended, output)


def run(seed: int, key_file: Path, folder: Path) -> None:  # noqa: F811
    """Simulate a seed, and check it."""
    random = Random(seed)
    network = Network(random)
    limits = Limits(body=4096, connections=100, requests=1024)
    settings: dict[str, Any] = {"upstream": URL, "metrics": URL, "playground": False, "limits": limits}
    settings |= {"key_file": str(key_file), "background_requests": random.randint(1, 4), "batches": f"unix://%2F{API}"}
    with front(settings) as made:
        network.aliases[FRONT] = made.background
        slow = random.choice((0.05, 0.3))
        triton = Triton(network, MODELS, slow, random.choice((0.0, 0.3)))
        labels = random.sample(["free", "few", KEYLESS], k=random.randint(2, 3))
        batches = Batches(folder, {label: random.choice((3, 20, 40)) for label in labels}, random.randint(1, 4))

        async def main() -> None:
            world = World(network, made, triton, None, limits, True)
            await made.server.startup()
            await batches.serve(network)
            running = asyncio.create_task(batches.run())
            callers = [asyncio.create_task(leave_an_upload(world)) for _ in range(random.randint(0, 2))]
            callers += [asyncio.create_task(world.call("steady", 3)) for _ in range(random.randint(0, 2))]
            ends = [finished(world, batches, label, slow) for label in labels if label != KEYLESS]
            await asyncio.gather(world.faults(), *callers, *ends)
            for request in world.requests:
                world.check(request)
            running.cancel()
            await asyncio.wait([running])
            await made.server.shutdown()
            await asyncio.sleep(1.0)
            assert not made.leaks()
            store = batches.store
            sizes = [file.bytes for file in store.files.values() if file.owner != KEYLESS]
            assert store._used == sum(sizes) + BLOCK * (len(store.files) + len(store.batches)), "disk space is left"
            assert not triton.running.total() and not triton.connections

        simulate(network, main())
    assert not network.failures, network.failures


def test_batches_of_several_keys(seeds: Sequence[int], key_file: Path) -> None:  # noqa: F811
    for seed in seeds[: 1 + len(seeds) // 40]:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            try:
                run(seed, key_file, Path(folder))
            except BaseException as error:
                error.add_note(f"pytest {__file__} --seed {seed}")
                raise
