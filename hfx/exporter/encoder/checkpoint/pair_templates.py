"""Templates that put a query and a document, or one text, into a prompt, for language models that rank or classify.

Those for pairs are chat templates with the roles `query` and `document`, as sentence-transformers' CrossEncoder (6.2)
renders them; a prompt is the message of the role `system`. Only the texts around the fields are published, not the
template's code.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.config_file import MAX_BYTES, TOKENIZER_CONFIG, read_bytes, read_optional_json
from hfx.exporter.encoder.checkpoint.sentence_transformers import transformer_config
from hfx.exporter.source import Checkpoint
from hfx.names import PROMPT, QUERY, TEXT_INPUT
from hfx.process import ends_with_parent
from hfx.python_backends.templates import rendered

CHAT_TEMPLATE = "chat_template.jinja"
ROLES = {QUERY: "query", TEXT_INPUT: "document", PROMPT: "system"}
MARKS = {name: f"<hfx {name}>" for name in ROLES}
# Probes: if a template changes the texts of fields at all, it changes one of these.
PROBES = (" a \n\n{{ b }}\t<c> ", "É'\"&", "a b " * (1 << 15), "")
# If a template has any of these strings, the library takes the content of its messages for a list of parts; otherwise,
# for a text.
STRUCTURED = ("content[0]", ".type", "'type'", '"type"', "item.type", "message.content[")
SECONDS, WALL_SECONDS = 5.0, 60.0  # processor time for one text, and wall time for all texts on a busy machine
CONSTANT = {"add_generation_prompt": False, "tools": None, "documents": None}
ADVICE = (
    "Save a chat_template.jinja beside the weights that writes one message of the role query and, last, one of the "
    "role document."
)


@dataclass(frozen=True)
class Message:
    """How the library makes messages of texts, for a chat template.

    `is_stated` says whether the files state that texts become messages; if not, the library makes messages only if
    there is a template. `has_parts` means that the content of a message is a list (None: this depends on the template).
    `variables` are passed to the template.
    """

    is_stated: bool
    has_parts: bool | None
    variables: Mapping[str, Any]


@dataclass(frozen=True)
class MessageTemplate:
    """A template of one message of the role `user`: a fixed text, the name of the field, and a fixed text.

    With `strips`, white space around the message is left out, as chat templates do with the filter `trim`.
    """

    parts: tuple[str, ...]
    strips: bool = False

    def stripped(self, text: str) -> str:
        """Return the text as the template writes it."""
        return text.strip() if self.strips else text


@dataclass(frozen=True)
class PairTemplate:
    """A template as parts: fixed texts at even indices, and names of fields at odd indices.

    The last field is the document (TEXT_INPUT). `prompted` is the template with a prompt; None if the template takes no
    prompt.
    """

    plain: tuple[str, ...]
    prompted: tuple[str, ...] | None = None


def _parts(text: str) -> tuple[str, ...]:
    """Split a text with `MARKS` into the parts of a template."""
    parts = [text]
    for name, mark in MARKS.items():
        parts = [
            piece for at, part in enumerate(parts) for piece in (_split(part, mark, name) if at % 2 == 0 else [part])
        ]
    return tuple(parts)


def _split(text: str, mark: str, name: str) -> list[str]:
    first, *others = text.split(mark)
    return [first, *(piece for other in others for piece in (name, other))]


_QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {{}}\n<Query>: {MARKS[QUERY]}\n<Document>: {MARKS[TEXT_INPUT]}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
# Model type -> the template in the model card of its published re-rankers, for language models without a template.
LANGUAGE_MODELS = {
    "qwen3": PairTemplate(
        _parts(_QWEN3.format("Given a web search query, retrieve relevant passages that answer the query")),
        _parts(_QWEN3.format(MARKS[PROMPT])),
    )
}


def read_template(checkpoint: Checkpoint, has_modules: bool, scores_answers: bool) -> PairTemplate | None:
    """Return the template that the library puts pairs into; None if its tokenizer takes the two texts as they are.

    A language model whose answers are scored (`scores_answers`), but which has no file of the library (not
    `has_modules`), gets the template of its model card. Raises CheckpointUnsupported if a template is needed and
    missing, or does more than put the texts of a pair between its own texts.
    """
    folder, message = checkpoint.home.folder, _read_message(checkpoint.folder)
    if message is None:
        return None
    template = _chat_template(folder, message)
    if template is None and scores_answers and not has_modules:
        template = LANGUAGE_MODELS.get(checkpoint.model_type)
    if template is None and (scores_answers or message.is_stated):
        raise CheckpointUnsupported(f"{folder} has no chat template that a query and a document are put into.", ADVICE)
    return template


def read_message_template(checkpoint: Checkpoint, system: str | None) -> MessageTemplate:
    """Return the chat template for a message of the user, behind the message `system` if it is given.

    The answer begins behind the template (`add_generation_prompt`), without thinking (`enable_thinking`). Raises
    CheckpointUnsupported if the template doesn't write both messages, or changes the text.
    """
    folder = checkpoint.home.folder
    config = read_optional_json(folder / TOKENIZER_CONFIG)
    source = _source(folder, config)
    if not source or config.get("truncation_side") == "left":
        raise CheckpointUnsupported(
            f"{folder} has no chat template that is cut at the end of a text.", "Save a chat_template.jinja beside it."
        )
    variables = {**_special_tokens(config), "add_generation_prompt": True, "enable_thinking": False}
    mark, fields = MARKS[TEXT_INPUT], {} if system is None else {PROMPT: system}
    roles = {PROMPT: "system", TEXT_INPUT: "user"}
    for has_parts in (False, True):
        renderer = _Renderer(source, variables, has_parts, roles)
        text, *written = renderer.texts([fields | {TEXT_INPUT: each} for each in (mark, *PROBES)])
        if text is None or text.count(mark) != 1 or (system or "").strip() not in text:
            continue
        before, _, behind = text.partition(mark)
        for template in (MessageTemplate((before, TEXT_INPUT, behind), strips) for strips in (False, True)):
            if written == [rendered(template.parts, {TEXT_INPUT: template.stripped(each)}) for each in PROBES]:
                return template
    messages = "the message of a user" if system is None else "the messages of a system and a user"
    raise CheckpointUnsupported(
        f"The chat template of {folder} does not write {messages} as they are.",
        "Save a chat_template.jinja beside the weights that does.",
    )


def _read_message(folder: Path) -> Message | None:
    """Return how texts for the checkpoint in `folder` become messages; None if the files say that they do not."""
    config = transformer_config(folder)[1]
    modalities, settings = config.get("modality_config"), config.get("processing_kwargs") or {}
    stated = modalities.get("message") if isinstance(modalities, dict) else {}
    if stated is None:
        return None
    form = stated.get("format", "auto") if isinstance(stated, dict) else "auto"
    variables = settings.get("chat_template") if isinstance(settings, dict) else {}
    has_parts = None if form == "auto" else form == "structured"
    return Message(modalities is not None, has_parts, variables if isinstance(variables, dict) else {})


def _chat_template(folder: Path, message: Message) -> PairTemplate | None:
    """Return the chat template in `folder`; None if there is none, or if it leaves the query or the document out."""
    config = read_optional_json(folder / TOKENIZER_CONFIG)
    source = _source(folder, config)
    if not source:
        return None
    has_parts = any(each in source for each in STRUCTURED) if message.has_parts is None else message.has_parts
    renderer = _Renderer(source, {**_special_tokens(config), **message.variables}, has_parts)
    pair = {QUERY: MARKS[QUERY], TEXT_INPUT: MARKS[TEXT_INPUT]}
    plain, prompted = renderer.texts([pair, MARKS])
    if plain is None or any(mark not in plain for mark in pair.values()):
        return None
    has_prompt = prompted is not None and MARKS[PROMPT] in prompted
    template = PairTemplate(_parts(plain), _parts(prompted) if has_prompt and prompted is not None else None)
    if config.get("truncation_side") == "left":
        raise _refused(folder, "is read with truncation_side left, which cuts its beginning")
    forms = [parts for parts in (template.plain, template.prompted) if parts is not None]
    if any(parts[1::2].count(TEXT_INPUT) != 1 or parts[-2] != TEXT_INPUT for parts in forms):
        raise _refused(folder, "does not end with the document")
    probes = [(parts, fields) for parts in forms for fields in _probes(parts)]
    for (parts, fields), text in zip(probes, renderer.texts([fields for _, fields in probes]), strict=True):
        if text != rendered(parts, fields):
            raise _refused(folder, f"changes the text of a {next(n for n in fields if fields[n] != 'a')}")
    return template


def _probes(parts: Sequence[str]) -> list[dict[str, str]]:
    """Return fields that show whether the template changes the text of any of them."""
    names = {QUERY, TEXT_INPUT, *parts[1::2]}
    usual = dict.fromkeys(names, "a")
    return [{**usual, name: text} for name in names for text in PROBES if text or name != PROMPT]  # "": no prompt


def _refused(folder: Path, what: str) -> CheckpointUnsupported:
    return CheckpointUnsupported(f"The chat template of {folder} {what}, which hfx can't export.", ADVICE)


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    """Return the source of the chat template as transformers finds it; empty if there is none."""
    file = folder / CHAT_TEMPLATE
    if file.is_file():
        return read_bytes(file, MAX_BYTES).decode(errors="replace")
    stated = config.get("chat_template")
    if isinstance(stated, list):
        named = [each for each in stated if isinstance(each, dict) and each.get("name") == "default"]
        stated = named[0].get("template") if named else None
    return stated if isinstance(stated, str) else ""


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: each.get("content") if isinstance(each, dict) else each for name, each in config.items()}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


@dataclass(frozen=True)
class _Renderer:
    """Renders a chat template. It is untrusted code, so it runs in a separate process, like those of served chats."""

    source: str
    variables: Mapping[str, Any]
    has_parts: bool
    roles: Mapping[str, str] = field(default_factory=lambda: ROLES)

    def texts(self, rows: Sequence[Mapping[str, str]]) -> list[str | None]:
        """Return the text for the fields of each row; None if the template fails, or takes too much time or memory."""
        lines = "".join(json.dumps(self._request(fields)) + "\n" for fields in rows)
        spec = importlib.util.find_spec("hfx.front.chat_worker")
        assert spec is not None
        command = ends_with_parent((sys.executable, "-I", str(spec.origin)))
        try:
            done = subprocess.run(command, input=lines.encode(), capture_output=True, timeout=WALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [None] * len(rows)
        found = [json.loads(line).get("text") for line in done.stdout.splitlines()]
        return [*found, *[None] * (len(rows) - len(found))]

    def _request(self, fields: Mapping[str, str]) -> dict[str, Any]:
        messages: list[dict[str, Any]] = [
            {"role": role, "content": fields[name]} for name, role in self.roles.items() if name in fields
        ]
        messages.sort(key=lambda message: message["role"] != ROLES[PROMPT])
        if self.has_parts:
            messages = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in messages]
        variables = {**CONSTANT, **self.variables, "messages": messages}
        return {"template": self.source, "variables": variables, "seconds": SECONDS}
