"""Published models in this process as objects of the class Model (hfx.answering), which answer requests."""

from __future__ import annotations

import math
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hfx import names
from hfx.answering import Answer, Model, Piece, Request, plain_values
from hfx.errors import HfxError, UsageError
from hfx.local import Device, read_config
from hfx.manifest import model_sha256
from hfx.metadata import INT32_MAX, ModelMetadata, TensorMetadata, tensors_of
from hfx.names import GENERATION_TASKS, MODEL_SHA256, Task
from hfx.repository.catalog import model as published_model
from hfx.tasks import kind_of

if TYPE_CHECKING:
    from hfx.local.generator import LocalGenerator


@contextmanager
def local_model(
    repository: Path, name: str, timeout: float | None = None, *, device: Device = "cpu", threads: int | None = None
) -> Iterator[Model]:
    """Open the model `name` of `repository`. Each request to a generator must be done within `timeout` seconds.

    `threads` replaces the number of threads in the configuration. Raises RepositoryError, and UsageError for an encoder
    with a timeout.
    """
    task = published_model(repository, name).task
    metadata, sha256 = published_metadata(repository, name), _sha256(repository, name)
    if task in GENERATION_TASKS:
        from hfx.local.generator import LocalGenerator

        with LocalGenerator.open(repository, name, device, threads=threads) as generator:
            yield replace(_generator(generator, task, metadata, timeout), sha256=sha256)
        return
    if timeout is not None:
        raise UsageError(f"A {task} model in this process keeps no timeout.", "Leave the timeout out.")
    from hfx.local.encoder import LocalModel

    encoder = LocalModel.open(repository, name, device, threads=threads)

    def answer_many(requests: Sequence[Request]) -> list[Answer | HfxError]:
        return [each if isinstance(each, HfxError) else plain_values(each) for each in encoder.answer_each(requests)]

    yield Model(
        task,
        metadata,
        lambda request: plain_values(encoder.infer(request)),
        None,
        at_once=1,
        answer_many=answer_many,
        sha256=sha256,
    )


def _sha256(repository: Path, name: str) -> str:
    """Return the SHA-256 that a server would report for a published model."""
    parameters = read_config(repository / name / "config.pbtxt").get("parameters", {})
    stamped = parameters.get(MODEL_SHA256, {}).get("string_value")
    return stamped or model_sha256(published_model(repository, name).files)


def published_metadata(repository: Path, name: str) -> ModelMetadata:
    """Return the metadata that a server would report for a published model. Raises ModelMissing and ModelCorrupt."""
    manifest = published_model(repository, name)
    config = read_config(repository / name / "config.pbtxt")
    inputs, outputs = (tensors_of(config[side], (-1,)) for side in ("input", "output"))
    metadata = ModelMetadata(name, inputs, outputs, str(manifest.task))
    return replace(metadata, kind=kind_of(metadata, manifest.task, manifest.choices) or "")


def _generator(generator: LocalGenerator, task: Task, metadata: ModelMetadata, timeout: float | None) -> Model:
    several = TensorMetadata(names.NUM_RETURN_SEQUENCES, "INT32", (-1, 1))
    if timeout is not None and not 0 < timeout < math.inf:
        raise UsageError(f"A timeout of {timeout} s can't be kept.", "Give a positive number of seconds.")
    deadline = {} if timeout is None else {names.TIMEOUT_MS: [max(1, min(INT32_MAX, round(1000 * timeout)))]}
    one_document = threading.Lock()  # one document's chunks fill the engine

    def answer(request: Request) -> Answer:
        with one_document if request.get(names.LONG) == ["chunk"] else nullcontext():
            return plain_values(generator.infer(deadline | request))

    def stream(request: Request) -> Generator[Piece, None, None]:
        if request.get(names.NUM_RETURN_SEQUENCES, [1]) != [1]:
            raise UsageError("A stream has one text.", f"Leave {names.NUM_RETURN_SEQUENCES} out.")
        with closing(generator.stream(deadline | request)) as pieces:
            for piece in pieces:
                yield Piece(
                    piece.text,
                    piece.finish_reason or "",
                    piece.input_tokens,
                    piece.output_tokens,
                    piece.truncated_tokens,
                    piece.log_probs or (),
                    piece.tokens or (),
                    piece.prompt_tokens,
                )

    metadata = replace(metadata, inputs=(*metadata.inputs, several))
    return Model(task, metadata, answer, stream, 2 * generator.slots)
