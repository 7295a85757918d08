"""TextGenerator, which generates texts from texts with a model, in this process and in Triton."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Union

from ..engine.constraint import NUMPY, native_masking
from ..engine.engine import Engine
from ..engine.request import Request
from ..engine.spec import NATIVE, OPENVINO
from ..errors import DeadlineExceeded, InvalidRequest, ModelDamaged
from ..tokenizer_file import open_tokenizer
from .configuration import Configuration, GenerationConfig, resolve_config
from .detokenizer import Detokenizer
from .documents import parts
from .grammars import GrammarCompiler
from .pieces import Piece, Pieces, SequenceReader, as_one_piece, join_texts
from .prompts import PromptEncoder, Text
from .request_window import Cancelled, RequestWindow, concatenate, summarize
from .streams import OpenPieces, Read, TextStream, read_live, read_whole

TOKENIZER_FILE = "tokenizer.json"
PROVIDERS = {"cpu": "CPU", "gpu": "CUDA"}

# Parts of a document that are submitted at a time, per slot: enough to keep the slots busy without filling the queue.
DOCUMENT_SHARE = 2
PARTS = 16  # parts that are made before other documents' parts: 100 ms of work for parts of 1,000 tokens
_DOCUMENTS = count(1)

WARM_UP_TEXT = "A text."
WARM_UP_TOKENS = 8
WARM_UPS: tuple[Mapping[str, Any], ...] = ({}, {"num_beams": 1, "do_sample": True})

Field = Union[int, float, bool, str, Sequence[str], None]


class TextGenerator:
    """A published model, which generates texts from texts. For any number of threads and event loops.

    Methods take the settings of generation_settings.py as keyword arguments (`max_tokens=20, num_beams=4`). The model's
    defaults apply to settings that are left out. All methods raise these errors when they are called: InvalidRequest
    for a setting or a text that the model can't take, DoesNotFit for a text that is too long for the model, QueueFull
    and EngineClosed. DeadlineExceeded and StepFailed are raised later, while the text is generated. `timeout` is in
    seconds from the call.
    """

    def __init__(self, engine: Engine, tokenizer: Any, configuration: Configuration) -> None:
        self.engine = engine
        self.configuration = configuration
        self._prompts = PromptEncoder(tokenizer, configuration, engine.spec.vocab_size)
        self._detokenizer = Detokenizer(
            tokenizer, configuration.clean_up_tokenization_spaces, configuration.special_token_ids
        )
        spec, eos = engine.spec, configuration.eos_token_ids
        native = spec.operators.path if spec.operators and engine.runtime == NATIVE else None
        masking = native_masking(native) if native else NUMPY
        self._grammars = GrammarCompiler(tokenizer, self._detokenizer.is_special, spec.vocab_size, eos, masking)
        self._slots = engine.stats().slots

    @classmethod
    def open(
        cls,
        folder: Path | str,
        *,
        device: str = "cpu",
        provider: str = "",
        runtime: str | None = None,
        **settings: Any,
    ) -> TextGenerator:
        """Open the model in `folder`: generation.json, tokenizer.json, and an engine's folder for each device.

        `provider` is the execution provider (for example, to run the files of one device on another); by default, it is
        the device's own. `runtime` is the runtime on CPU, as the configuration names it: native (onnxruntime if that is
        unavailable), onnxruntime, or openvino (in earlier versions); None means the choice of engine.json. `settings`
        are `threads` and `device_id` of Engine.open, and the fields of EngineSettings except `beams`: the decoder for
        the default number of beams is open when this returns. Raises the subclasses of ModelRefused.
        """
        folder = Path(folder)
        configuration = Configuration.read(folder)
        _check_defaults(configuration, folder)
        tokenizer = _tokenizer(folder / TOKENIZER_FILE)
        if device not in PROVIDERS or not (folder / device).is_dir():
            raise ModelDamaged(f"{folder} has no engine for the device {device!r}", "Export the model for that device")
        engine = Engine.open(
            folder / device,
            provider=provider or PROVIDERS[device],
            # Engine.open refuses a named runtime that is unavailable, but replaces engine.json's own choice (None) by
            # onnxruntime. As native and openvino may be replaced, they are passed as None.
            runtime=None if runtime in (OPENVINO, NATIVE) else runtime,
            beams=(int(configuration.defaults.get("num_beams", 1)),),
            **settings,
        )
        try:
            _check_engine(configuration, engine, folder)
            _check_runtime(runtime, engine, folder / device)
            return cls(engine, tokenizer, configuration)
        except BaseException:
            engine.close()
            raise

    def stream(self, text: Text, *, timeout: float | None = None, **fields: Field) -> TextStream:
        """Return the pieces of the generated text as they come; with `num_return_sequences`, of each of the texts.

        The texts of beams come as one piece each. Closing the stream early cancels the request.
        """
        return TextStream(self.live(text, fields, timeout))

    def whole(self, text: Text, *, timeout: float | None = None, **fields: Field) -> TextStream:
        """Return a stream of a single piece, which comes when the text is complete. The reader is not woken before.

        Raises InvalidRequest if num_return_sequences is above 1: use generate_all.
        """
        return TextStream(self.joined(text, fields, timeout))

    def generate(self, text: Text, *, timeout: float | None = None, **fields: Field) -> Piece:
        """Generate one text, and return it as a single piece."""
        return next(self.whole(text, timeout=timeout, **fields))

    def generate_all(self, text: Text, *, timeout: float | None = None, **fields: Field) -> tuple[Piece, ...]:
        """Generate all `num_return_sequences` texts; the texts of beams are ordered with the best first."""
        config = self._config(fields, timeout)
        return join_texts(TextStream(partial(self._pieces, text, config, _read(config))))

    def live(self, text: Text, fields: Mapping[str, Any], timeout: float | None = None) -> OpenPieces:
        """Return a function that opens a TextStream's pieces (its argument `open_pieces`) like those of `stream`."""
        return partial(self._pieces, text, self._config(fields, timeout), read_live)

    def joined(self, text: Text, fields: Mapping[str, Any], timeout: float | None = None) -> OpenPieces:
        """Return a function that opens a TextStream's pieces (its argument `open_pieces`) like those of `whole`."""
        config = self._config(fields, timeout)
        _refuse_several(config)
        return lambda stream: as_one_piece(self._pieces(text, config, _read(config), stream))

    def generate_many(self, texts: Iterable[Text], *, timeout: float | None = None, **fields: Field) -> list[Piece]:
        """Generate one text for each of `texts`, in order. The engine and its queue limit how many run at a time.

        The first failure cancels the others and is raised.
        """
        config = self._config(fields, timeout)
        _refuse_several(config)
        return list(TextStream(partial(self._pieces_of_many, texts, config)))

    def warm_up(self) -> None:
        """Run every part once, so that the first caller need not wait for what is set up at first use."""
        most = min(WARM_UP_TOKENS, self.configuration.most_tokens)
        for fields in WARM_UPS:
            self.generate(WARM_UP_TEXT, max_tokens=most, min_tokens=most, **fields)

    def close(self) -> None:
        """Fail unfinished requests with EngineClosed, and release the model."""
        self.engine.close()

    def __enter__(self) -> TextGenerator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _config(self, fields: Mapping[str, Any], timeout: float | None) -> GenerationConfig:
        config = resolve_config(fields, self.configuration, timeout)
        return replace(config, new_matcher=self._grammars.compile(config))

    def _submit(self, stream: TextStream, config: GenerationConfig, request: Request, read: Read) -> Pieces:
        job = self.engine.submit(request)
        stream.add(job)
        count, stops = config.num_return_sequences, config.stop_words
        verbatim = config.new_matcher is not None  # structured output keeps its spaces
        readers = [SequenceReader(self._detokenizer, stops, config.returns_tokens, verbatim) for _ in range(count)]
        return read(stream, job, readers)

    def _pieces(self, text: Text, config: GenerationConfig, read: Read, stream: TextStream) -> Pieces:
        """Submit a text, or prepare to divide it (`long` is chunk)."""
        if config.long != "chunk":
            return self._submit(stream, config, self._prompts.encode(text, config), read)
        open_window = partial(self._window, stream, config, next(_DOCUMENTS))
        merge = summarize if config.merge == "recursive" else concatenate
        return merge(self._prompts.document(text), open_window, read)

    def _window(self, stream: TextStream, config: GenerationConfig, number: int, text: str) -> RequestWindow:
        """Return the requests for the parts of a document, each of which is made when it is needed."""
        cancelled, deadline = stream.cancelled, config.deadline  # the division may outlive the stream

        def checkpoint() -> None:
            if cancelled.is_set():
                raise Cancelled
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceeded

        texts = parts(text, self._prompts, config.overlap, checkpoint)
        requests = (self._prompts.encode(part, config) for part in texts)
        submit = partial(self._submit, stream, config)
        return RequestWindow(stream, submit, requests, DOCUMENT_SHARE * self._slots, PARTS, number)

    def _pieces_of_many(self, texts: Iterable[Text], config: GenerationConfig, stream: TextStream) -> Pieces:
        """Return one piece for each of `texts`."""
        read = _read(config)
        if config.long == "chunk":
            documents = (as_one_piece(self._pieces(text, config, read, stream)) for text in texts)
            return (piece for pieces in documents for piece in pieces)
        requests = (self._prompts.encode(text, config) for text in texts)
        submit = partial(self._submit, stream, config)
        window = RequestWindow(stream, submit, requests, self._slots + self.engine.settings.max_queue)
        return window.pieces(lambda *submitted: as_one_piece(read(*submitted)))


def _refuse_several(config: GenerationConfig) -> None:
    returned = config.num_return_sequences
    if returned != 1:
        raise InvalidRequest("num_return_sequences", returned, "1, as generate_all alone returns several")


def _read(config: GenerationConfig) -> Read:
    """Return how to read texts that are only returned whole."""
    return read_live if config.comes_early else read_whole


def _tokenizer(path: Path) -> Any:
    try:
        return open_tokenizer(path)
    except ValueError as error:
        raise ModelDamaged(str(error)) from None


def _check_defaults(configuration: Configuration, folder: Path) -> None:
    try:
        resolve_config({}, configuration)
    except InvalidRequest as refusal:
        raise ModelDamaged(f"the defaults in {folder} contradict each other: {refusal}", "Export it again") from None


def _check_engine(configuration: Configuration, engine: Engine, folder: Path) -> None:
    """Refuse a configuration of another kind, or one that promises more than the engine has."""
    spec = engine.spec
    if configuration.kind != spec.kind:
        raise ModelDamaged(f"{folder}: kind is {configuration.kind}, but its engine's {spec.kind}", "Export it again")
    for name in ("max_length", "max_source"):
        promised, has = getattr(configuration, name) or 0, getattr(spec, name)
        if promised > has:
            raise ModelDamaged(f"{folder}: {name} is {promised}, but its engine's {has}", "Export it again")
    ids = configuration.languages.ids.values() if configuration.languages else ()
    if max(ids, default=0) >= spec.vocab_size:
        raise ModelDamaged(f"{folder}: languages has ids beyond the engine's {spec.vocab_size}", "Export it again")


def _check_runtime(runtime: str | None, engine: Engine, folder: Path) -> None:
    """Refuse a runtime for which the folder has no files."""
    there = {OPENVINO: engine.spec.runtime == OPENVINO, NATIVE: engine.spec.operators is not None}
    if not there.get(runtime or "", True):
        raise ModelDamaged(
            f"{folder} has nothing for the runtime {runtime}", "Set cpu_runtime to onnxruntime, or export it again"
        )
