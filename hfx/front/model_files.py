"""Files of the served models in the repository: settings, and tokenizers for counts and lists of tokens.

A file is opened when a request first needs it, and again after it has changed. Tokenizers are opened in a thread, which
also tokenizes texts that are not short, so that the event loop stays free for other requests. A tokenizer takes 300
times the memory of a text. Therefore only one thread tokenizes at a time, and it reads no more of a text than the
model's own tokenizing step does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hfx import names
from hfx.front.catalog import ServedModel
from hfx.front.fields import WITHOUT_PROMPTS
from hfx.front.guard import Disconnected
from hfx.front.refusals import Refusal, invalid, shown
from hfx.names import GENERATION_TASKS, STREAM_SUFFIX, TOKENIZE_SUFFIX, Kind, Task
from hfx.native import is_built
from hfx.python_backends.inputs import BYTES_PER_TOKEN, piece
from hfx.python_backends.tokenizer_file import open_tokenizer
from hfx.tasks import kind_of

TOKENIZER, SETTINGS, CHAT, GENERATION = "tokenizer.json", "settings.json", "chat.json", "generation.json"
SHORT = 2000  # characters, which are tokenized in less time than a thread takes to start
Stamp = tuple[int, int]
Result = TypeVar("Result")


class ModelFiles:
    """The files of the models in the folder `repository`. With an empty path, no file is available."""

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._opened: dict[str, tuple[Stamp, Any]] = {}
        self._warm: set[Path] = set()  # tokenizers that are open
        self._reading = asyncio.Lock()

    async def tokenized(
        self,
        model: ServedModel,
        texts: list[str],
        use: Callable[[str, Any], Result],
        special: bool = True,
        has_left: Callable[[], bool] = lambda: False,
    ) -> list[Result]:
        """Return the results of `use`, which is called with each text and its tokenizers.Encoding.

        The encoding is that of the model, without special tokens if `special` is false. Raises Disconnected if
        `has_left` returns True: the client has disconnected.
        """
        tokenizer = self._folder(model, _tokenizing(model)) / TOKENIZER
        return await self._read(tokenizer, texts, lambda: self._tokenized(tokenizer, texts, use, special, has_left))

    async def prompt_length(self, model: ServedModel, prompt: str, special: bool, has_left: Callable[[], bool]) -> int:
        """Return the number of tokens of a decoder's prompt. What no model could read of it is not counted."""
        limit = self.generation(model)["max_length"] * BYTES_PER_TOKEN[-1]
        read = piece(names.TEXT_INPUT, prompt.encode(), limit, "right").text
        [count] = await self.tokenized(model, [read], lambda _, encoding: len(encoding), special, has_left)
        return max(count, 1)  # transformers continues an empty prompt from its start token

    async def count(self, model: ServedModel, texts: list[str], has_left: Callable[[], bool]) -> int:
        """Return the total number of tokens that the model reads of `texts`. Raises Disconnected.

        The compiled tokenizer is used if there is one. With 250,002 pieces, it takes 39 MB and opens in 20 ms; the
        Python tokenizer takes 398 MB and 1.4 s.
        """
        compiled = self._folder(model, _tokenizing(model)) / names.COMPILED_TOKENIZER
        if not (compiled.exists() and is_built()):
            return sum(await self.tokenized(model, texts, lambda _, encoding: len(encoding), has_left=has_left))
        return await self._read(compiled, texts, lambda: self._counted(compiled, texts, has_left))

    async def _read(self, tokenizer: Path, texts: list[str], read: Callable[[], Result]) -> Result:
        """Return the result of `read`. It runs in a thread if the tokenizer must be opened or the texts are long."""
        if tokenizer in self._warm and sum(map(len, texts)) <= SHORT:
            return read()
        async with self._reading:
            result = await asyncio.to_thread(read)
        self._warm.add(tokenizer)
        return result

    def settings(self, model: ServedModel, suffix: str = names.POSTPROCESS_SUFFIX) -> dict[str, Any]:
        """Return the settings with which an encoder's answers are made."""
        return self._json(self._folder(model, suffix) / SETTINGS)

    def text_settings(self, model: ServedModel) -> dict[str, Any]:
        """Return the settings with which an encoder reads texts, such as its `max_length` and its `prompts`."""
        return self.settings(model, TOKENIZE_SUFFIX)

    def prompted(
        self, model: ServedModel, texts: Sequence[str], prompt_name: str | None = None, prompt: str | None = None
    ) -> list[str]:
        """Return the texts as an encoder's tokenizer gets them, with a prompt before each.

        Raises Refusal for an unknown name, and for a model whose template of pairs contains the prompt.
        """
        settings = self.text_settings(model)
        if settings.get("template"):
            message = f"{model.name} reads a prompt in its template of pairs. Leave prompt_name out."
            raise invalid(message, names.PROMPT_NAME)
        empty = WITHOUT_PROMPTS[names.PROMPT_NAME] if model.task is Task.FEATURE_EXTRACTION else ()
        known = settings.get("prompts") or dict.fromkeys(empty, "")
        if prompt_name is not None and prompt_name not in known:
            listed = ", ".join(map(repr, known)) or "none"
            raise invalid(f"prompt_name is {shown(prompt_name)}; the model's prompts are {listed}.", names.PROMPT_NAME)
        before = settings.get("default_prompt", "") if prompt is None else prompt
        return [(known[prompt_name] if prompt_name is not None else before) + text for text in texts]

    def chat(self, model: ServedModel) -> dict[str, Any] | None:
        """Return a generator's chat template and the texts of its special tokens, or None if it has no template."""
        file = self._folder(model, STREAM_SUFFIX) / CHAT
        return self._json(file) if file.exists() else None

    def generation(self, model: ServedModel) -> dict[str, Any]:
        """Return the limits and default settings of a generator: its generation.json."""
        return self._json(self._folder(model, STREAM_SUFFIX) / GENERATION)

    def manifest(self, model: ServedModel) -> dict[str, Any]:
        """Return the model's manifest, hfx.json."""
        return self._json(self._folder(model, "").parent / names.MANIFEST_FILE)

    def kind(self, model: ServedModel) -> Kind | None:
        """Return the model's kind. If the configuration of an export does not name it, the manifest is used, too."""
        return (
            model.kind if model.metadata.kind else kind_of(model.metadata, model.task, self.manifest(model)["choices"])
        )

    def _folder(self, model: ServedModel, suffix: str) -> Path:
        if not self._repository:
            raise Refusal(501, "This front has no model repository. Start it by `hfx serve`.")
        return Path(self._repository, f"{model.name}{suffix}", "1")

    def _counted(self, file: Path, texts: list[str], has_left: Callable[[], bool]) -> int:
        tokenizer, special = self._open(file, _open_compiled)
        settings = self._json(file.with_name(SETTINGS))
        most, side = settings["max_length"], settings.get("truncation_side", "right")
        pieces = _pieces(texts, most * BYTES_PER_TOKEN[-1], side, has_left)
        return sum(min(most, len(tokenizer.encode_flat([read])[0]) + special) for _, read in pieces)

    def _tokenized(
        self,
        file: Path,
        texts: list[str],
        use: Callable[[str, Any], Result],
        special: bool,
        has_left: Callable[[], bool],
    ) -> list[Result]:
        tokenizer = self._open(file, _open_tokenizer)
        cut = tokenizer.truncation or {}
        limit = cut["max_length"] * BYTES_PER_TOKEN[-1] if cut else sys.maxsize
        # Unlike encode, encode_batch releases the interpreter's lock, so that other threads run meanwhile.
        return [
            use(text, tokenizer.encode_batch([read], add_special_tokens=special)[0])
            for text, read in _pieces(texts, limit, cut.get("direction", "right"), has_left)
        ]

    def _json(self, file: Path) -> dict[str, Any]:
        return self._open(file, _read_json)  # type: ignore[no-any-return]

    def _open(self, file: Path, read: Any) -> Any:
        """Return the result of `read` for the current content of `file`. Raises Refusal (501)."""
        try:
            status = file.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if self._opened.get(str(file), (None,))[0] != stamp:
                self._opened[str(file)] = (stamp, read(file))
        except (ImportError, OSError, ValueError) as error:
            message = f"{file.name} of {file.parent.parent.name} can't be opened: {error}."
            raise Refusal(501, f"{message} See that the model is in the repository and tokenizers installed.") from None
        return self._opened[str(file)][1]


def _pieces(texts: list[str], limit: int, side: str, has_left: Callable[[], bool]) -> Iterator[tuple[str, str]]:
    """Yield each text with the part of it that a model reads, of `limit` bytes at most. Raises Disconnected."""
    for text in texts:
        if has_left():
            raise Disconnected
        yield text, piece(names.TEXT_INPUT, text.encode(), limit, side).text


def _tokenizing(model: ServedModel) -> str:
    """Return the suffix of the member that has the tokenizer."""
    return STREAM_SUFFIX if model.task in GENERATION_TASKS else TOKENIZE_SUFFIX


def _open_compiled(file: Path) -> tuple[Any, int]:
    """Return the compiled tokenizer, and the number of special tokens that it adds to a text."""
    from hfx.native.tokenizers import CompiledTokenizer

    tokenizer = CompiledTokenizer(file)
    return tokenizer, len(tokenizer.template(pair=False)[0])


def _open_tokenizer(file: Path) -> Any:
    """Return the tokenizer, which cuts texts at the model's maximum length as the model's own step does."""
    tokenizer = open_tokenizer(file)
    tokenizer.no_padding()
    if file.with_name(SETTINGS).exists():
        values = _read_json(file.with_name(SETTINGS))
        tokenizer.enable_truncation(values["max_length"], direction=values.get("truncation_side", "right"))
    return tokenizer


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
