"""How `hfx infer` asks a model, wherever it runs: through a server, or in this process.

A request is the tensors of one text as plain values; an outcome is output tensors, or why there are none. It must not
know options or printing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.errors import HfxError
from hfx.names import GENERATION_TASKS, NUM_RETURN_SEQUENCES, Task

if TYPE_CHECKING:
    from hfx.client.inputs import Value
    from hfx.local_generation import LocalGenerator
    from hfx.python_backends.generation.results import Piece

Request = dict[str, list["Value"]]
Outcome = dict[str, Any] | HfxError


@dataclass(frozen=True)
class Model:
    """A model that can be asked. `stream` gives an answer's pieces as they come, where the model can."""

    task: Task
    ask: Callable[[Sequence[Request]], Iterator[Outcome]]
    stream: Callable[[Request], Iterator[Piece]] | None = None


@contextmanager
def served(name: str, url: str, timeout: float) -> Iterator[Model]:
    """NAME behind the server at URL."""
    from hfx.client import Client
    from hfx.client.tasks import task_of

    with Client(url, timeout=timeout) as client:
        task = task_of(client.metadata(name))

        def ask(requests: Sequence[Request]) -> Iterator[Outcome]:
            for outcome in client.infer_each(name, requests):
                yield outcome if isinstance(outcome, HfxError) else {key: value[0] for key, value in outcome.items()}

        yield Model(task, ask)


@contextmanager
def in_process(name: str, repository: Path) -> Iterator[Model]:
    """NAME of REPOSITORY, opened here."""
    from hfx.repository.catalog import model as manifest_of

    task = manifest_of(repository, name).task
    if task not in GENERATION_TASKS:
        yield _encoder(task, name, repository)
        return
    from hfx.local_generation import LocalGenerator

    with LocalGenerator.open(repository, name) as generator:
        yield Model(task, lambda requests: _generated(generator, requests), generator.stream)


def _encoder(task: Task, name: str, repository: Path) -> Model:
    from hfx.local import LocalModel

    opened = LocalModel.open(repository, name)

    def ask(requests: Sequence[Request]) -> Iterator[Outcome]:
        for request in requests:
            try:
                yield opened.infer({key: values if _is_text(values) else values[0] for key, values in request.items()})
            except HfxError as error:
                yield error

    return Model(task, ask)


def _generated(generator: LocalGenerator, requests: Sequence[Request]) -> Iterator[Outcome]:
    """Many requests together; where one of them fails, one by one, to tell which."""
    if len(requests) > 1 and not any(NUM_RETURN_SEQUENCES in request for request in requests):
        try:
            yield from generator.infer_all(requests)
            return
        except HfxError:
            pass
    for request in requests:
        try:
            yield generator.infer(request)
        except HfxError as error:
            yield error


def _is_text(values: Sequence[Value]) -> bool:
    return isinstance(values[0], str)
