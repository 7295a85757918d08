"""How the command line asks a model, wherever it runs: through a server, or in this process.

A request is the tensors of one text as plain values, an answer output tensors. It must not know options or printing.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx import names
from hfx.cli.connection import AT_ONCE, Connection, connect
from hfx.cli.interrupts import deferred
from hfx.cli.tensors import Request
from hfx.errors import UsageError
from hfx.names import GENERATION_TASKS, Task

if TYPE_CHECKING:
    from hfx.client import Client, ModelMetadata

Answer = dict[str, Any]
INT32_MAX = 2**31 - 1
STOPPING = {"true": True, "false": False}


@dataclass(frozen=True)
class Part:
    """Some more of a text; of the input, so many tokens did not fit into the model."""

    text: str
    truncated_tokens: int = 0


Parts = Generator[Part, None, None]


@dataclass(frozen=True)
class Model:
    """A model that can be asked, from `at_once` threads. `stream` gives a generator's text as it comes.

    Both raise HfxError; to close what `stream` gives is to cancel the request.
    """

    task: Task
    metadata: ModelMetadata
    answer: Callable[[Request], Answer]
    stream: Callable[[Request], Parts]
    at_once: int


@contextmanager
def served(name: str, connection: Connection) -> Iterator[Model]:
    """NAME behind a server; what is under way when the context is left is cancelled."""
    from hfx.client.tasks import task_of

    with connect(connection) as client:
        metadata = client.metadata(name)
        task = task_of(metadata)

        def answer(request: Request) -> Answer:
            return {key: value[0] for key, value in client.infer(name, request).items()}

        def stream(request: Request) -> Parts:
            return _streamed(client, name, request)

        at_once = connection.max_in_flight or AT_ONCE
        yield Model(task, metadata, answer, stream if task in GENERATION_TASKS else _not_streamed(task), at_once)


def _streamed(client: Client, name: str, request: Request) -> Parts:
    from hfx.client import GenerationSettings, TruncationWarning

    values: Answer = {key: each if key == names.STOP_WORDS else each[0] for key, each in request.items()}
    text, stopping = values.pop(names.TEXT_INPUT), values.get(names.EARLY_STOPPING)
    if stopping in STOPPING:
        values[names.EARLY_STOPPING] = STOPPING[stopping]
    with warnings.catch_warnings(), client.stream(name, text, GenerationSettings(**values)) as pieces:
        warnings.simplefilter("ignore", TruncationWarning)  # it is in what is printed
        for piece in pieces:
            yield Part(piece.text, piece.truncated_tokens)


@contextmanager
def in_process(name: str, repository: Path, timeout: float | None) -> Iterator[Model]:
    """NAME of REPOSITORY, opened here."""
    with deferred():
        from hfx.local import read_config
        from hfx.local.encoder import LocalModel
        from hfx.repository.catalog import model as manifest_of

    task = manifest_of(repository, name).task
    metadata = _configured(name, read_config(repository / name / "config.pbtxt"))
    if task in GENERATION_TASKS:
        with _generator(task, metadata, repository, timeout) as model:
            yield model
        return
    if timeout is not None:
        raise UsageError(f"A {task} model in this process keeps no --timeout.", "Leave --timeout out.")
    yield Model(task, metadata, LocalModel.open(repository, name).infer, _not_streamed(task), at_once=1)


def _configured(name: str, config: Mapping[str, Any]) -> ModelMetadata:
    """What a server would tell of a model."""
    from hfx.client import ModelMetadata, TensorMetadata

    inputs = [
        TensorMetadata(
            each["name"],
            each["data_type"].removeprefix("TYPE_").replace("STRING", "BYTES"),
            (-1, *map(int, each["dims"])),
        )
        for each in config["input"]
    ]
    return ModelMetadata(name, tuple(inputs), ())


@contextmanager
def _generator(task: Task, metadata: ModelMetadata, repository: Path, timeout: float | None) -> Iterator[Model]:
    from hfx.client import TensorMetadata
    from hfx.local.generator import LocalGenerator

    several = TensorMetadata(names.NUM_RETURN_SEQUENCES, "INT32", (-1, 1))
    deadline = {} if timeout is None else _deadline(timeout)
    alone = threading.Lock()  # the chunks of one document fill the engine

    def answer(request: Request) -> Answer:
        with alone if request.get(names.LONG) == ["chunk"] else nullcontext():
            return generator.infer(deadline | request)

    def stream(request: Request) -> Parts:
        if request.get(names.NUM_RETURN_SEQUENCES, [1]) != [1]:
            raise UsageError("--stream shows one text at a time.", "Leave --num-return-sequences out.")
        with closing(generator.stream(deadline | request)) as pieces:
            for piece in pieces:
                yield Part(piece.text, piece.truncated_tokens)

    with LocalGenerator.open(repository, metadata.name) as generator:
        takes = replace(metadata, inputs=(*metadata.inputs, several))
        yield Model(task, takes, answer, stream, 2 * generator.slots)


def _deadline(timeout: float) -> Request:
    if not 0 < timeout < math.inf:
        raise UsageError(f"A timeout of {timeout} s can't be kept.", "Give a positive number of seconds.")
    return {names.TIMEOUT_MS: [max(1, min(INT32_MAX, round(1000 * timeout)))]}


def _not_streamed(task: Task) -> Callable[[Request], Parts]:
    def stream(request: Request) -> Parts:
        raise UsageError(f"This {task} model's answers can't be streamed.", "Leave --stream out.")

    return stream
