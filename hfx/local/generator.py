"""Published generators in this process: the engine of NAME_stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx import errors, names
from hfx.local import THREADS, Answer, Device, Kind, Request, device_config, is_foreign
from hfx.python_backends import errors as engine
from hfx.python_backends.engine.generation_settings import LISTS, from_text
from hfx.python_backends.errors import EngineError

if TYPE_CHECKING:
    from hfx.python_backends.generation.generator import TextGenerator
    from hfx.python_backends.generation.pieces import Piece

PROVIDERS: Mapping[Kind, str] = {"CPU": "CPU", "GPU": "CUDA"}
OWN: Mapping[Device, Kind] = {"cpu": "CPU", "gpu": "GPU"}
# The options with which an engine is opened -> the parameters of its configuration, which may lack those in OPTIONAL.
PARAMETERS = {"slots": "slots", "max_queue": "max_queue_size", "threads": THREADS}
OPTIONAL = {"prefix_cache_mb": "prefix_cache_mb"}
CPU_RUNTIME = "cpu_runtime"
ERRORS: tuple[tuple[type[EngineError], type[errors.HfxError]], ...] = (
    (engine.InvalidRequest, errors.UsageError),
    (engine.DoesNotFit, errors.RequestRefused),
    (engine.DeadlineExceeded, errors.RequestTimeout),
    (engine.QueueFull, errors.ServerBusy),
    (engine.EngineClosed, errors.ServerUnreachable),  # a subclass of Draining
    (engine.Draining, errors.ServerBusy),
    (engine.ModelDamaged, errors.ModelCorrupt),
    (engine.ModelRefused, errors.UsageError),
    (EngineError, errors.ServerError),
)


class LocalGenerator:
    """The open engine NAME_stream of a repository. Use it as a context manager, or `close()` it.

    Requests and answers are plain values under the names of the published tensors (hfx.names).
    """

    def __init__(self, name: str, generator: TextGenerator) -> None:
        self.name = name
        self.slots = generator.engine.stats().slots
        self._generator = generator

    @classmethod
    def open(
        cls,
        repository: Path,
        name: str,
        device: Device = "cpu",
        kind: Kind | None = None,
        cpu_runtime: str | None = None,
        threads: int | None = None,
    ) -> LocalGenerator:
        """Open NAME as `--model-config-name=DEVICE` would serve it.

        `kind` runs the files of one device on another; `cpu_runtime` and `threads` replace the values in the
        configuration. Native operators run only if they are this installation's own. Raises ModelMissing,
        ModelCorrupt, and UsageError if this machine can't run the model.
        """
        names.check_name(name)
        folder = repository / (name + names.STREAM_SUFFIX)
        parameters = device_config(folder, device).get("parameters", {})
        texts = {key: entry.get("string_value", "") for key, entry in parameters.items()}
        options: dict[str, Any] = {
            **_numbers(folder, texts),
            "device": device,
            "provider": PROVIDERS[kind or OWN[device]],
            "runtime": _runtime(folder / "1" / device, cpu_runtime or texts.get(CPU_RUNTIME)),
            **({} if threads is None else {"threads": threads}),
        }
        from hfx.python_backends.generation.generator import TextGenerator

        with _translated_errors():
            return cls(name, TextGenerator.open(folder / "1", **options))

    @property
    def runtime(self) -> str:
        """The runtime of the engine: "onnxruntime" or "native"."""
        return self._generator.engine.runtime

    def is_random(self, request: Request) -> bool:
        """Return whether the answer to the request is sampled, so that another model would give another text."""
        from hfx.python_backends.generation.configuration import resolve_config

        with _translated_errors():
            return resolve_config(_fields(request)[1], self._generator.configuration).do_sample

    def infer(self, request: Request) -> Answer:
        """Answer one request, for example `{"text_input": "..."}`.

        If `num_return_sequences` is more than 1, every output that differs between the texts is a list.
        """
        text, fields = _fields(request)
        with _translated_errors():
            return _answer(self._generator.generate_all(text, **fields))

    def infer_all(self, requests: Sequence[Request]) -> list[Answer]:
        """Answer many requests, in order; requests with the same settings run together."""
        answers: dict[int, Answer] = {}
        for members in _alike(requests):
            texts = [_fields(requests[index])[0] for index in members]
            with _translated_errors():
                generated = self._generator.generate_many(texts, **_fields(requests[members[0]])[1])
            answers |= {index: _answer([text]) for index, text in zip(members, generated, strict=True)}
        return [answers[index] for index in range(len(requests))]

    def stream(self, request: Request) -> Generator[Piece, None, None]:
        """Yield the pieces of the answer as they are generated. Closing the iterator early cancels the request."""
        text, fields = _fields(request)
        with _translated_errors(), self._generator.stream(text, **fields) as pieces:
            yield from pieces

    def close(self) -> None:
        """Close the engine, and release the memory of the model."""
        self._generator.close()

    def __enter__(self) -> LocalGenerator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _runtime(folder: Path, requested: str | None) -> str | None:
    """Return `requested`, or ONNX Runtime instead of native operators that are not this installation's."""
    from hfx.python_backends.engine.spec import NATIVE, ONNXRUNTIME, read_spec

    with _translated_errors():
        spec = read_spec(folder)
    library = spec.operators if (requested or spec.runtime) == NATIVE else None
    return ONNXRUNTIME if library and is_foreign(library.path, library.sha256) else requested


def _numbers(folder: Path, texts: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers in the parameters `texts` with which the engine is opened. Raises ModelCorrupt."""
    optional = {option: key for option, key in OPTIONAL.items() if key in texts}
    try:
        return {option: int(texts[key]) for option, key in (PARAMETERS | optional).items()}
    except (KeyError, ValueError) as error:
        wanted = ", ".join((PARAMETERS | optional).values())
        raise errors.ModelCorrupt(
            f"The configuration of {folder.name} lacks one of the numbers {wanted}.",
            "Export the model again with --force.",
        ) from error


def _fields(request: Request) -> tuple[str, dict[str, Any]]:
    """Return the text of a request, and its settings as arguments of the generator."""
    values = {name: _plain(name, value) for name, value in request.items() if name != names.STREAM}
    if names.TEXT_INPUT not in values:
        raise errors.RequestRefused(f"{names.TEXT_INPUT} is missing.", "Give a text.")
    text = values.pop(names.TEXT_INPUT)
    if names.TIMEOUT_MS in values:
        values["timeout"] = _seconds(values.pop(names.TIMEOUT_MS))
    return text, {name: from_text(name, value) for name, value in values.items()}


def _seconds(milliseconds: Any) -> float:
    if type(milliseconds) is not int or milliseconds < 1:
        raise errors.UsageError(
            f"{names.TIMEOUT_MS} is {milliseconds!r}.", "Give a whole number of milliseconds above 0."
        )
    return milliseconds / 1000


def _plain(name: str, value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and name not in LISTS else value


def _alike(requests: Sequence[Request]) -> list[list[int]]:
    """Group the indices of requests with the same settings, in the order of each group's first request."""
    groups: list[tuple[dict[str, Any], list[int]]] = []
    for index, request in enumerate(requests):
        fields = _fields(request)[1]
        members = next((members for known, members in groups if known == fields), None)
        if members is None:
            groups.append((fields, members := []))
        members.append(index)
    return [members for _, members in groups]


def _answer(texts: Sequence[Piece]) -> Answer:
    """Return the output tensors for the texts that were generated for one request."""
    from hfx.python_backends.generation.pieces import prompt_outputs, token_outputs

    first = texts[0]
    answer: Answer = {
        names.TEXT_OUTPUT: [text.text for text in texts],
        names.FINISH_REASON: [text.finish_reason for text in texts],
        names.OUTPUT_TOKENS: [text.output_tokens for text in texts],
    }
    if first.log_probs is not None:
        answer[names.OUTPUT_LOG_PROBS] = [list(text.log_probs or ()) for text in texts]
    if first.tokens is not None:
        tables = [token_outputs(text.tokens or ()) for text in texts]
        answer |= {name: [table[name] for table in tables] for name in tables[0]}
    answer = answer if len(texts) > 1 else {name: values[0] for name, values in answer.items()}
    answer |= prompt_outputs(first.prompt_tokens)
    return {**answer, names.INPUT_TOKENS: first.input_tokens, names.TRUNCATED_TOKENS: first.truncated_tokens}


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise errors of the engine as errors of hfx."""
    try:
        yield
    except EngineError as error:
        raise _translated(error) from error


def _translated(error: EngineError) -> errors.HfxError:
    kind = next(ours for theirs, ours in ERRORS if isinstance(error, theirs))
    if isinstance(error, engine.InvalidRequest) and error.field == names.TEXT_INPUT:
        kind = errors.RequestRefused
    return kind(_sentence(error.message), _sentence(error.fix))


def _sentence(text: str) -> str:
    return f"{text}." if text and not text.endswith("?") else text
