"""Compares a random share of Triton's answers with reference models, in a separate process (hfx.exporter.shadow).

The front keeps the bodies of the selected requests and answers, and counts the verdicts. No request waits for a
comparison.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from hfx.client.tensors import HEADER_LENGTH
from hfx.front.metrics import COMPARED, DRIFT, NOT_COMPARED, PARITY_LIMIT, Samples
from hfx.front.refusals import Header
from hfx.front.upstream import COPIED_BYTES, Upstream, UpstreamConnection
from hfx.process import LineChild

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

ANSWERED = re.compile(rb"/v2/models/[A-Za-z0-9_-]+/(?:infer|generate|generate_stream)")
WAITING = 64  # pairs of a request and its answer, of COPIED_BYTES each body at most
LINE_BYTES = 1 << 16
PAUSE_SECONDS = 10.0  # after the end of a process, before another one is started
HEAD, ENCODING = HEADER_LENGTH.encode(), b"content-encoding"
VERDICTS = ("same", "tie", "differs")


@dataclass(frozen=True)
class SampledAnswer:
    """A request and its answer, as they were sent over the connection to Triton."""

    path: bytes
    request: bytes
    request_headers: Mapping[bytes, bytes]
    answer: bytes
    answer_headers: Mapping[bytes, bytes]

    def message(self) -> bytes:
        """Return the message with which this is sent to the process."""
        heads = [headers.get(HEAD) for headers in (self.request_headers, self.answer_headers)]
        fields = {
            "path": self.path.decode(),
            "heads": [int(head) if head else None for head in heads],
            "encoding": self.answer_headers.get(ENCODING, b"").decode("latin-1"),
            "sizes": [len(self.request), len(self.answer)],
        }
        return b"".join((json.dumps(fields).encode(), b"\n", self.request, self.answer))


class Shadow:
    """Selects `share` of the answers at random, and has `command` compare them, one at a time.

    `answers` counts answers by model and verdict, and `skipped` by reason. `drift` has the sum of each model's drifts.
    `limits` has the least share of a model's answers that must not differ, and the largest mean drift if it is limited.
    """

    def __init__(self, share: float, command: Sequence[str], pause: float = PAUSE_SECONDS) -> None:
        self._share = share
        self._command = command
        self._pause = pause
        self._random = Random()
        self._waiting: asyncio.Queue[SampledAnswer] = asyncio.Queue(WAITING)
        self._task: asyncio.Task[None] | None = None
        self.answers: Counter[tuple[str, ...]] = Counter()
        self.skipped: Counter[str] = Counter()
        self.drift: dict[tuple[str, ...], float] = defaultdict(float)
        self.limits: dict[tuple[str, ...], float] = {}

    def samples(self) -> Samples:
        """Return the counts as samples of metrics."""
        skipped: dict[tuple[str, ...], int] = {(reason,): count for reason, count in self.skipped.items()}
        return {COMPARED: self.answers, DRIFT: self.drift, PARITY_LIMIT: self.limits, NOT_COMPARED: skipped}

    def draws(self, path: bytes) -> bool:
        """Return whether to compare the answer to a request for `path`. The choice is random."""
        return self._random.random() < self._share and ANSWERED.fullmatch(path) is not None

    def add(self, pair: SampledAnswer) -> None:
        """Queue `pair` for comparison; it is skipped if the queue is full or if the pair is too large."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        if max(len(pair.request), len(pair.answer)) > COPIED_BYTES:
            self.skipped["large"] += 1
        elif self._waiting.full():
            self.skipped["busy"] += 1
        else:
            self._waiting.put_nowait(pair)

    async def _run(self) -> None:
        while True:
            with suppress(OSError, ValueError):  # the process has ended
                await self._compare()
            self.skipped["failed"] += 1
            await asyncio.sleep(self._pause)

    async def _compare(self) -> None:
        """Start a process and send it the selected answers, until it ends."""
        child = await LineChild.start(self._command, LINE_BYTES)
        try:
            while True:
                pair = await self._waiting.get()
                self._count(json.loads(await child.answer(pair.message())))
        finally:
            await child.kill()

    def _count(self, verdict: dict[str, Any]) -> None:
        if verdict["skipped"]:
            self.skipped[verdict["skipped"]] += 1
            return
        model = verdict["model"]
        for name in VERDICTS:
            self.answers[model, name] += verdict[name]
        self.drift[model,] += verdict["drift"]
        self.limits[model, "agreement"] = verdict["agreement"]
        if verdict["drift_limit"] is not None:
            self.limits[model, "drift"] = verdict["drift_limit"]


class ShadowedUpstream(Upstream):
    """An Upstream that adds a share of its answers to `shadow` for comparison."""

    def __init__(self, url: str, shadow: Shadow) -> None:
        super().__init__(url)
        self._shadow = shadow

    @asynccontextmanager
    async def sent(
        self,
        method: bytes,
        path: bytes,
        body: bytes = b"",
        headers: Sequence[Header] = (),
        client: ClientConnection | None = None,
    ) -> AsyncIterator[UpstreamConnection]:
        """Send a request as Upstream.sent does, and add the answer to the shadow if it is selected."""
        async with super().sent(method, path, body, headers, client) as connection:
            drawn = self._shadow.draws(path)
            if drawn:
                connection.copied = bytearray()
            yield connection
            if drawn and connection.complete and connection.status == 200:
                copied = bytes(connection.copied or b"")
                self._shadow.add(SampledAnswer(path, body, dict(headers), copied, dict(connection.headers)))


def shadow_command(repository: str, references: str, device: str) -> tuple[str, ...]:
    """Return the command of the process that compares answers."""
    return (sys.executable, "-P", "-m", "hfx.exporter.shadow", repository, references, device)
