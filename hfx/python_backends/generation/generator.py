"""Text in, text out: a generation model, in this process and in Triton."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Union

from tokenizers import Tokenizer

from ..engine.constraint import NUMPY, native_masking
from ..engine.engine import Engine
from ..engine.request import Request
from ..engine.spec import NATIVE, OPENVINO
from ..errors import DeadlineExceeded, InvalidRequest, ModelDamaged
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

# Parts of a document that are submitted at a time, for each slot: enough to keep them busy, and no full queue.
DOCUMENT_SHARE = 2
PARTS = 16  # that are made before other documents have their turn: of 1,000 tokens each, 100 ms
_DOCUMENTS = count(1)

WARM_UP_TEXT = "A text."
WARM_UP_TOKENS = 8
WARM_UPS: tuple[Mapping[str, Any], ...] = ({}, {"num_beams": 1, "do_sample": True})

Field = Union[int, float, bool, str, Sequence[str], None]


class TextGenerator:
    """A published model: texts become prompts, and the engine's tokens texts. For any number of threads and loops.

    Methods take the settings of generation_settings.py as keyword arguments (`max_tokens=20, num_beams=4`); what is
    left out is as the model's defaults say. All of them raise InvalidRequest for a setting or a text that can't be
    taken, DoesNotFit for a text that is too long for the model, QueueFull and EngineClosed at once, and what
    becomes of a request later (DeadlineExceeded, StepFailed). `timeout` is in seconds from the call.
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
        """The model in `folder`: generation.json, tokenizer.json, and an engine's folder for each device.

        `provider` runs the files of one device on another; without it they run on their own. `runtime` is the one that
        computes on the CPU, as the configuration names it: native (onnxruntime where that can't be had), onnxruntime,
        or, by earlier versions, openvino; None: what engine.json says. `settings` are `threads` and `device_id` of
        Engine.open and the fields of EngineSettings, but for the beams: the decoder for the default number of them is
        open when this returns. Raises ModelRefused in its kinds.
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
            # A name would be strict: engine.json's own choice is what gives way where it can't be had.
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
        """The pieces of a text (of each of `num_return_sequences`) as they come; beams come whole.

        To leave the stream early is to cancel the request.
        """
        return TextStream(self.live(text, fields, timeout))

    def whole(self, text: Text, *, timeout: float | None = None, **fields: Field) -> TextStream:
        """As `stream`, with the text as a single piece at its end; its reader is not woken before.

        Raises InvalidRequest where num_return_sequences is above 1: use generate_all.
        """
        return TextStream(self.joined(text, fields, timeout))

    def generate(self, text: Text, *, timeout: float | None = None, **fields: Field) -> Piece:
        """One text, as `whole`."""
        return next(self.whole(text, timeout=timeout, **fields))

    def generate_all(self, text: Text, *, timeout: float | None = None, **fields: Field) -> tuple[Piece, ...]:
        """All `num_return_sequences` texts, of beams the best first."""
        config = self._config(fields, timeout)
        return join_texts(TextStream(partial(self._pieces, text, config, _read(config))))

    def live(self, text: Text, fields: Mapping[str, Any], timeout: float | None = None) -> OpenPieces:
        """What opens a stream as that of `stream`."""
        return partial(self._pieces, text, self._config(fields, timeout), read_live)

    def joined(self, text: Text, fields: Mapping[str, Any], timeout: float | None = None) -> OpenPieces:
        """What opens a stream as that of `whole`."""
        config = self._config(fields, timeout)
        _refuse_several(config)
        return lambda stream: as_one_piece(self._pieces(text, config, _read(config), stream))

    def generate_many(self, texts: Iterable[Text], *, timeout: float | None = None, **fields: Field) -> list[Piece]:
        """One text for each of `texts`, in order; as many run at a time as the engine and its queue take.

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
        """Fail what is not over with EngineClosed, and let go of the model."""
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
        verbatim = config.new_matcher is not None  # spaces are as the form has them
        readers = [SequenceReader(self._detokenizer, stops, config.returns_tokens, verbatim) for _ in range(count)]
        return read(stream, job, readers)

    def _pieces(self, text: Text, config: GenerationConfig, read: Read, stream: TextStream) -> Pieces:
        """Submit a text, or prepare its division."""
        if config.long != "chunk":
            return self._submit(stream, config, self._prompts.encode(text, config), read)
        open_window = partial(self._window, stream, config, next(_DOCUMENTS))
        merge = summarize if config.merge == "recursive" else concatenate
        return merge(self._prompts.document(text), open_window, read)

    def _window(self, stream: TextStream, config: GenerationConfig, number: int, text: str) -> RequestWindow:
        """The requests of the parts of a document, each made when it is needed."""
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
        """One piece for each of `texts`."""
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
    """How texts that are seen at their end only are read: as they come where stop strings may end them earlier.

    Tokens are read as they come, too: 1,000 of them with 20 alternatives each take 0.1 s, for which the pieces of other
    requests would wait.
    """
    comes_early = config.returns_tokens or (config.stop_words and config.num_beams == 1)
    return read_live if comes_early else read_whole


def _tokenizer(path: Path) -> Any:
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except BaseException as error:  # the library's own, and its panics
        raise ModelDamaged(f"{path} can't be read: {error}") from None


def _check_defaults(configuration: Configuration, folder: Path) -> None:
    try:
        resolve_config({}, configuration)
    except InvalidRequest as refusal:
        raise ModelDamaged(f"the defaults in {folder} contradict each other: {refusal}", "Export it again") from None


def _check_engine(configuration: Configuration, engine: Engine, folder: Path) -> None:
    """Refuse a configuration that promises what the engine has not."""
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
    """Refuse a runtime that the folder has nothing for."""
    there = {OPENVINO: engine.spec.runtime == OPENVINO, NATIVE: engine.spec.operators is not None}
    if not there.get(runtime or "", True):
        raise ModelDamaged(
            f"{folder} has nothing for the runtime {runtime}", "Set cpu_runtime to onnxruntime, or export it again"
        )
