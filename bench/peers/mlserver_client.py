"""MLServer as a peer: posts of texts to a server that is started for each number of new tokens.

Owns requests, answers and the clock of those who send them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.errors import CaseFailed, PeerFailed
from bench.peers import mlserver
from bench.peers.cases import Answered, Batch, PeerRun, Wanted
from bench.peers.generated import asked
from bench.peers.memory import peak_bytes
from bench.peers.model import Kind, Reading, read
from bench.peers.peer import Identity, Opened, Peer, cores
from bench.peers.posts import Connection, PostFailed, connected, post_request
from bench.peers.resident import LONGEST_ANSWER, Prepare, Resident, Run
from hfx.errors import FetchFailed, RequestTimeout, ServerError
from hfx.perf.load import Closed, Limits, Plan, RequestSet
from hfx.perf.loadgen.driver import Driver
from hfx.perf.loadgen.log import Piece, RequestLog, RequestRecord

PATIENCE = 0.1  # seconds in which requests of a load are gathered to a batch
OPEN_CONNECTIONS, MOST = 64, 512  # that are ready before requests come at times of their own; at all
Body = list[dict[str, Any]]  # of each row


class MLServer(Peer):
    """MLServer's HuggingFace runtime."""

    name = "mlserver"
    title = "MLServer, HuggingFace runtime"
    about = "a server with adaptive batches over transformers on torch: generators and classifiers over HTTP"
    needs = (mlserver.PACKAGES,)

    def precisions(self, kind: Kind) -> tuple[str, ...]:
        """See Peer."""
        return ("fp32",) if kind == "classifier" else ("fp32", "bf16")

    def versions(self) -> Mapping[str, str]:
        """See Peer."""
        known = self.needs[0].versions
        return {name: known[name] for name in ("mlserver", "mlserver-huggingface", "transformers")}

    def open(self, checkpoint: Path, task: str, precision: str = "", threads: int | None = None) -> OpenMLServer:
        """See Peer. The server starts with the first batch, which says how long answers are."""
        model, reading = read(checkpoint, task)
        chosen = self.chosen(reading.kind, precision)
        self.require_installed()
        identity = Identity(self.name, self.title, model.name, task, chosen, threads or cores(), "http")
        return OpenMLServer(identity, reading, Path(model.files))


class OpenMLServer(Opened):
    """A checkpoint for MLServer, and the server that runs for what it was asked last."""

    def __init__(self, identity: Identity, reading: Reading, checkpoint: Path) -> None:
        self.identity, self.reading = identity, reading
        self._checkpoint = checkpoint
        self._stack = ExitStack()
        self._server: mlserver.Server | None = None
        self._serves: tuple[Wanted | None, float] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT of the server that runs, empty before the first batch."""
        return self._server.address if self._server else ""

    def run(self, batch: Batch, seconds: float = 0.0) -> PeerRun:
        """See Opened: all texts in one request."""
        wanted = None if self.check(batch).new_tokens is None else batch.wanted
        server, fresh = self._served(wanted, 0.0)
        post = post_request(server.address, f"{mlserver.PATH}/infer", request(batch.texts))
        if fresh:
            asyncio.run(_posted(server.address, post))
            self._check_length(server, batch.texts[0], wanted)
        used = mlserver.processor_seconds(server.pid)
        times, body = asyncio.run(_posted(server.address, post, seconds))
        spent = (mlserver.processor_seconds(server.pid) - used) / len(times)
        answered = answer(rows(body), batch.texts, wanted, self.reading)
        return PeerRun(times, answered, spent, peak_bytes(mlserver.child(server.pid)))

    def load(self, plan: Plan, asks: RequestSet, limits: Limits) -> RequestLog:
        """See Opened: a request for each text, on connections that are kept."""
        texts = asked(asks, labels=self.reading.kind == "classifier")
        lengths = {new for _, new in texts}
        if len(lengths) > 1:
            raise PeerFailed(f"MLServer writes answers of one length, not of {min(lengths)} to {max(lengths)} tokens")
        new = lengths.pop()
        wanted = Wanted(new) if new else None
        server, fresh = self._served(wanted, PATIENCE)
        posts = tuple(post_request(server.address, f"{mlserver.PATH}/infer", request([text])) for text, _ in texts)
        if fresh:
            asyncio.run(_posted(server.address, posts[0]))
            self._check_length(server, texts[0][0], wanted)
        with Resident(open_client, address=server.address) as client:
            log: RequestLog = client.answer(Sending(plan, limits, posts, new))
        return log

    def close(self) -> None:
        """See Opened."""
        self._stack.close()
        self._server = None

    def _check_length(self, server: mlserver.Server, text: str, wanted: Wanted | None) -> None:
        """Count the tokens of one answer, where the server can tell them. Raises CaseFailed for others than wanted."""
        if wanted is None or self.reading.kind != "decoder":
            return
        from tokenizers import Tokenizer

        prompt = len(Tokenizer.from_file(str(self._checkpoint / "tokenizer.json")).encode(text).ids)
        post = post_request(server.address, f"{mlserver.PATH}/infer", request([text], token_ids=True))
        found = len(rows(asyncio.run(_posted(server.address, post))[1])[0]["generated_token_ids"]) - prompt
        if found != wanted.new:
            raise CaseFailed(f"MLServer writes {found} tokens instead of {wanted.new}")

    def _served(self, wanted: Wanted | None, patience: float) -> tuple[mlserver.Server, bool]:
        """The server for answers of this kind, and whether it was started for it now."""
        if self._server is not None and self._serves == (wanted, patience):
            return self._server, False
        self.close()
        self._stack = ExitStack()
        try:
            who = self.identity
            self._server = self._stack.enter_context(
                mlserver.served(self._checkpoint, self.reading, wanted, who.precision, who.threads, patience)
            )
        except FetchFailed as error:
            raise PeerFailed(error.message) from error
        self._serves = wanted, patience
        return self._server, True


def request(texts: Sequence[str], token_ids: bool = False) -> bytes:
    """The JSON of a request; of this name MLServer makes batches. TOKEN_IDS instead of texts can't be in a batch."""
    inputs: list[dict[str, Any]] = [
        {"name": "array_inputs", "shape": [len(texts)], "datatype": "BYTES", "data": list(texts)}
    ]
    if token_ids:
        raw = {"content_type": "raw"}
        inputs.append({"name": "return_tensors", "shape": [1], "datatype": "BOOL", "data": [True], "parameters": raw})
    return json.dumps({"inputs": inputs}).encode()


def rows(body: bytes) -> Body:
    """What a response says of each row."""
    found = [json.loads(each) for each in json.loads(body)["outputs"][0]["data"]]
    return [each[0] if isinstance(each, list) else each for each in found]


def answer(found: Body, texts: Sequence[str], wanted: Wanted | None, reading: Reading) -> Answered:
    """A response as an answer. Its texts do not say how many tokens they have: as many as the server is set to."""
    if len(found) != len(texts):
        raise CaseFailed(f"{len(found)} answers to {len(texts)} texts")
    if wanted is None:
        return Answered(labels=tuple(str(row["label"]) for row in found))
    written = [row["generated_text" if "generated_text" in row else "summary_text"] for row in found]
    if reading.kind == "decoder":  # which repeats what it continues
        written = [new.removeprefix(text) for new, text in zip(written, texts, strict=True)]
    return Answered(0, (wanted.new,) * len(found), tuple(written))


async def _posted(address: str, post: bytes, seconds: float = 0.0) -> tuple[tuple[float, ...], bytes]:
    """Seconds of each post until SECONDS have passed, and the last answer."""
    connection, times, body, begin = await connected(address), list[float](), b"", time.perf_counter()
    try:
        while not times or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            async with asyncio.timeout(LONGEST_ANSWER):
                body = await connection.post(post)
            times.append(time.perf_counter() - start)
        return tuple(times), body
    except TimeoutError:
        raise CaseFailed(f"no answer in {LONGEST_ANSWER:.0f} s") from None
    except PostFailed as error:
        raise CaseFailed(str(error)) from error
    finally:
        connection.close()


@dataclass(frozen=True)
class Sending:
    """A load for the client's process: a post for each request, whose answers have `new` tokens (0: labels)."""

    plan: Plan
    limits: Limits
    posts: tuple[bytes, ...]
    new: int


class HttpTransport:
    """Posts on connections that are kept, one request at a time on each."""

    def __init__(self, address: str, sending: Sending) -> None:
        self._address, self._sending = address, sending
        self._free: list[Connection] = []

    async def connect(self, count: int) -> None:
        """Open `count` connections."""
        self._free = [await connected(self._address) for _ in range(count)]

    async def close(self) -> None:
        """Close them."""
        for connection in self._free:
            connection.close()

    async def send(self, record: RequestRecord, log: RequestLog | None) -> None:
        """Send the request now, and append it to `log` once it has ended."""
        posts, timeout, answers = self._sending.posts, self._sending.limits.timeout, list[bytes]()
        connection = self._free.pop() if self._free else await connected(self._address)
        record.sent = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                answers.append(await connection.post(posts[record.index % len(posts)]))
            self._free.append(connection)
        except TimeoutError:
            record.error = RequestTimeout.__name__, f"No answer in {timeout:g} s."
        except PostFailed as error:
            record.error = ServerError.__name__, str(error)
        finally:
            record.end = time.perf_counter()
            if record.error is not None:
                connection.close()  # one that failed is not used again
        if log is not None:
            log.add(record, answers, partial(_piece, self._sending.new))


def open_client(address: str) -> Prepare:
    """A client of the server at HOST:PORT; answers Sending with a RequestLog."""

    def prepare(case: Sending) -> Run:
        return lambda: asyncio.run(_sent(address, case))

    return prepare


async def _sent(address: str, sending: Sending) -> RequestLog:
    plan = sending.plan
    transport = HttpTransport(address, sending)
    await transport.connect(min(plan.callers if isinstance(plan, Closed) else OPEN_CONNECTIONS, MOST))
    log = RequestLog(counts=bool(sending.new))
    driver = Driver(plan, sending.limits, transport, log, lambda progress: None)
    gc.freeze()
    gc.disable()
    try:
        return await driver.run()
    finally:
        gc.enable()
        await transport.close()


def _piece(new: int, body: bytes) -> Piece:
    try:
        rows(body)
    except (ValueError, KeyError, IndexError) as error:
        return Piece(error=f"{type(error).__name__}: {error}")
    return Piece(written=new, finish_reason="length")
