"""Opening the model of a job: from a repository in this process, or behind one or more servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hfx import names
from hfx.answering import Model
from hfx.batch.rows import example
from hfx.batch.servers import Persistence, persistent
from hfx.errors import ModelChanged, UsageError
from hfx.metadata import ModelMetadata

# Answers to equal texts of WIDTHS words, in batches of BATCHES rows, must be equal to the bit.
BATCHES = (1, 2, 8, 16)
WIDTHS = (4, 40)


@dataclass(frozen=True)
class Repository:
    """A model repository. Its models run in this process, with `threads` threads (None: as configured)."""

    path: Path
    device: Literal["cpu", "gpu"] = "cpu"
    threads: int | None = None


@dataclass(frozen=True)
class Servers:
    """Servers of the same model. Each server gets up to `at_once` requests at a time.

    `options` are keyword arguments of hfx.client.Client, with a file `tls_ca` instead of its `tls`. The model's files
    must have the hash `sha256`, unless it is empty.
    """

    urls: tuple[str, ...]
    at_once: int = 64
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    sha256: str = ""


Place = Repository | Servers


@contextmanager
def open_model(name: str, place: Place, persistence: Persistence | None = None) -> Iterator[Model]:
    """Open the model `name`. Its methods raise RequestRefused only if the request itself is invalid.

    Other failures are retried.

    Raises RepositoryError or ServerError if there is no such model. Raises UsageError if, on this processor, the
    model's answers depend on the other rows of their batch.
    """
    persistence = persistence or Persistence()
    with ExitStack() as stack:
        if isinstance(place, Servers):
            models = [stack.enter_context(_served(name, url, place, persistence)) for url in place.urls]
            _check_equal(models, place.sha256)
            yield persistent(models, persistence)
            return
        from hfx.local.models import local_model

        model = stack.enter_context(
            local_model(place.path, name, timeout=persistence.row_timeout, device=place.device, threads=place.threads)
        )
        _check_independence(model)
        yield persistent([model], persistence, returns=False)


def describe(name: str, place: Place) -> tuple[names.Task, ModelMetadata, Place]:
    """Return the task and metadata of a model without opening it, and `place` with the hash of a served model's files.

    Raises RepositoryError or ServerError.
    """
    if isinstance(place, Repository):
        from hfx.local.models import published_metadata

        metadata = published_metadata(place.path, name)
        return names.Task(metadata.task), metadata, place
    with _served(name, place.urls[0], place, Persistence()) as model:
        return model.task, model.metadata, replace(place, sha256=model.sha256)


@contextmanager
def _served(name: str, url: str, place: Servers, persistence: Persistence) -> Iterator[Model]:
    from hfx.client import Client, Tls
    from hfx.client.served import served_model

    timeout = persistence.row_timeout or max(persistence.patience, 300.0)
    options = dict(place.options)
    if ca := options.pop("tls_ca", None):
        options["tls"] = Tls(ca=ca)
    with Client(url, timeout=timeout, retries=0, max_in_flight=place.at_once, **options) as client:
        yield served_model(client, name)


def _check_independence(model: Model) -> None:
    """Raise UsageError for an encoder whose answer to a text depends on the size of the text's batch."""
    if model.answer_many is None or model.task is names.Task.QUESTION_ANSWERING:
        return
    for words in WIDTHS:
        request = example(model, " word" * words)
        answers = [model.answer_many([request] * rows)[0] for rows in BATCHES]
        if any(answer != answers[0] for answer in answers):
            raise UsageError(
                f"On this processor, the answers of {model.metadata.name} depend on which other rows are in the batch.",
                "Export it here with --cpu-runtime onnxruntime, or score it behind a server (--url).",
            )


def _check_equal(models: Sequence[Model], sha256: str) -> None:
    """Raise UsageError if the servers' models differ, and ModelChanged if their hash is not `sha256`."""
    first = models[0]
    for model in models[1:]:
        if (model.task, model.metadata, model.sha256) != (first.task, first.metadata, first.sha256):
            raise UsageError(
                f"The servers have different models of the name {first.metadata.name!r}.",
                "Give servers of one and the same repository.",
            )
    if sha256 and first.sha256 != sha256:
        raise ModelChanged(f"The servers have another model {first.metadata.name!r} than before.", "Start a new job.")
