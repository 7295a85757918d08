"""The text generator in this process, asked as the doors of a server are: whole texts, and pieces.

Both open the published model exactly as Triton's adapter would. Knows no server.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.peers.resident import Prepare
from bench.serve_answers import Piece, Record
from bench.serve_cases import Ask
from bench.serve_doors import driven
from bench.serve_model import NAME, parameters
from hfx import names

if TYPE_CHECKING:
    from hfx.python_backends.generation.generator import TextGenerator

WHOLE, PIECES = "in process", "in process, pieces"


class WholeTexts:
    """TextGenerator.generate, a thread for each caller: the engine wakes nobody before a text is whole."""

    def __init__(self, generator: TextGenerator) -> None:
        self._generator = generator
        self._threads = ThreadPoolExecutor(1)
        self._count = 1

    async def connect(self, callers: int) -> None:
        """See Door."""
        if callers > self._count:
            self._threads.shutdown()
            self._threads, self._count = ThreadPoolExecutor(callers), callers

    def prepared(self, ask: Ask) -> Ask:
        """See Door."""
        return ask

    async def send(self, request: Ask, record: Record) -> None:
        """See Door."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._generate, request, record)

    def _generate(self, ask: Ask, record: Record) -> None:
        text = self._generator.generate(ask.text, max_tokens=ask.new)
        record.messages.append((perf_counter(), text))

    def read(self, message: Any) -> Piece:
        """See Door."""
        return _piece(message)


class Pieces:
    """TextGenerator.stream in an event loop."""

    def __init__(self, generator: TextGenerator) -> None:
        self._generator = generator

    async def connect(self, callers: int) -> None:
        """See Door: there is nothing to do."""

    def prepared(self, ask: Ask) -> Ask:
        """See Door."""
        return ask

    async def send(self, request: Ask, record: Record) -> None:
        """See Door."""
        async with self._generator.stream(request.text, max_tokens=request.new) as stream:
            async for piece in stream:
                record.messages.append((perf_counter(), piece))

    def read(self, message: Any) -> Piece:
        """See Door."""
        return _piece(message)


def open_inside(repository: str) -> Prepare:
    """The engine, opened as Triton's adapter opens it; answers (way, load) with Measured."""
    from hfx.python_backends.generation.generator import TextGenerator

    folder = Path(repository)
    generator = TextGenerator.open(folder / (NAME + names.STREAM_SUFFIX) / "1", **parameters(folder))
    generator.warm_up()
    return driven({WHOLE: WholeTexts(generator), PIECES: Pieces(generator)})


def _piece(found: Any) -> Piece:
    return Piece(found.text, found.finish_reason or "", found.input_tokens, found.output_tokens)
