"""How a checkpoint decodes unless a request says otherwise: generation_config.json in the public field names.

A value must be in the range that the engine accepts. A field that hfx does not support is refused by name if it would
change the answer. A field that transformers does not know either is left out, and a warning names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.generation.fields import (
    FILE,
    IGNORED,
    KNOWN,
    OFF,
    UNSERVED_SAMPLING,
    read_fields,
    settings_by_4,
    vocabulary_size,
)
from hfx.exporter.generation.tasks import GenerationTask
from hfx.exporter.source import Checkpoint
from hfx.exporter.transformers_versions import bad_words_at_start
from hfx.metadata import shown
from hfx.names import Task
from hfx.tasks.transformers_settings import LACKING

DEFAULT_MAX_TOKENS = 256  # as in transformers' pipelines; generate() alone stops after 20
UNSET_LENGTH = 20  # transformers' default max_length; version 4 counts it in new tokens, even if the checkpoint sets it
MOST_LISTED = 10_000
STRAYS_SHOWN = 5
LONGEST = 1_000_000
REMOVE = "Correct or remove it there; every request can set its own."
Ids = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """The settings of a checkpoint that decoding needs, by the names of generation.json.

    They are ids of special tokens, and `defaults` by public field name. `default_max_length` is a decoder's default for
    prompt and output together, if max_new_tokens is not set. `origins` are the files that the settings come from.
    `strays` are fields in these files that transformers does not know. `unread` are sampling fields that can't be
    served, in a checkpoint that doesn't sample.
    """

    default_max_length: int | None = None
    defaults: Mapping[str, Any]
    eos_token_ids: Ids
    pad_token_id: int
    bos_token_id: int | None
    decoder_start_token_ids: Ids
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_tokens: Ids = ()
    begin_suppress_tokens: Ids = ()
    bad_words_ids: tuple[Ids, ...] = ()
    bad_words_at_start: bool = True
    renormalize_logits: bool = False
    prefix: str = ""
    origins: tuple[str, ...] = field(default=(), compare=False)
    strays: tuple[str, ...] = field(default=(), compare=False)
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that a user should see before the model generates texts."""
        warnings = []
        if self.strays:
            first = ", ".join(map(shown, self.strays[:STRAYS_SHOWN]))
            more = f" and {len(self.strays) - STRAYS_SHOWN} more" if len(self.strays) > STRAYS_SHOWN else ""
            warnings.append(f"Fields that transformers doesn't know change no answer and are left out: {first}{more}.")
        if self.unread:
            warnings.append(
                f"Left out are settings of sampling that can't be served, and that nothing reads without do_sample: "
                f"{', '.join(self.unread)}. A request that samples does so without them."
            )
        if not self.eos_token_ids:
            named = " and ".join(self.origins) or FILE
            warnings.append(
                f"No token ends a text: {named} has no eos_token_id, so that every text is as long as it may."
            )
        return tuple(warnings)

    def as_json(self) -> dict[str, Any]:
        """Return the part of generation.json that holds these settings."""
        return {name: value for name, value in asdict(self).items() if name not in ("origins", "strays", "unread")}


def read_settings(checkpoint: Checkpoint, task: GenerationTask, positions: int) -> GenerationSettings:
    """Return the settings of `checkpoint` for `task`, for a model with `positions` tokens of prompt and output.

    Raises CheckpointCorrupt for an invalid value, and CheckpointUnsupported for a value that hfx does not support; both
    name the field and the file.
    """
    fields, origin = read_fields(checkpoint)
    tasks, prefix = task_fields(checkpoint, task)
    origins = dict.fromkeys(fields, origin) | dict.fromkeys(tasks, f"task_specific_params.{task.task} of config.json")
    strays = tuple(sorted((fields | tasks).keys() - KNOWN - IGNORED))
    known = {name: value for name, value in (fields | tasks).items() if name in KNOWN}
    unread = {name: value for name, value in known.items() if not known.get("do_sample") and _only_sampled(name, value)}
    read = {name: value for name, value in known.items() if name not in unread}
    reader = _Reader(read, origins, vocabulary_size(checkpoint), settings_by_4(checkpoint))
    reader.refuse_what_hfx_has_not()
    return replace(
        reader.settings(task, positions, prefix),
        bad_words_at_start=bad_words_at_start(checkpoint.config),
        strays=strays,
        unread=tuple(f"{name} in {origins[name]} ({shown(value)})" for name, value in sorted(unread.items())),
    )


def _only_sampled(name: str, value: Any) -> bool:
    """Return whether a field is only read for sampling, and has a value that the server doesn't accept."""
    from hfx.python_backends.engine.generation_settings import SAMPLING, SETTINGS
    from hfx.python_backends.errors import InvalidRequest

    if value is None or name in UNSERVED_SAMPLING:
        return value is not None and value not in LACKING[name]
    if name not in SETTINGS or SETTINGS[name].scope != SAMPLING:
        return False
    try:
        SETTINGS[name].check(name, value)
    except InvalidRequest:
        return True
    return False


def task_fields(checkpoint: Checkpoint, task: GenerationTask) -> tuple[dict[str, Any], str]:
    """Return config.json's settings for one task, as transformers' pipelines read them, and the prefix of its texts.

    Settings for text-generation are left out: the only known entry, GPT-2's, turns sampling on, which is a request's
    choice.
    """
    params = checkpoint.config.get("task_specific_params")
    entry = params.get(str(task.task)) if isinstance(params, dict) and task.task is not Task.TEXT_GENERATION else None
    entry = dict(entry) if isinstance(entry, dict) else {}
    prefix = entry.pop("prefix", None)
    prefix = checkpoint.config.get("prefix") if prefix is None else prefix
    if prefix is not None and not isinstance(prefix, str):
        raise CheckpointCorrupt(f"prefix in config.json is {shown(prefix)}, no text.", REMOVE)
    return entry, prefix or ""


@dataclass(frozen=True)
class _Reader:
    fields: Mapping[str, Any]
    origins: Mapping[str, str]
    vocabulary: int
    written_by_4: bool

    def refuse_what_hfx_has_not(self) -> None:
        """Refuse a field of transformers that hfx does not support, unless its value has no effect."""
        for name, value in self.fields.items():
            if name in LACKING and value is not None and value not in LACKING[name]:
                self._unsupported(name, "hfx does not decode with it")

    def settings(self, task: GenerationTask, positions: int, prefix: str) -> GenerationSettings:
        """Check and translate every field."""
        eos = self._ids("eos_token_id")
        bos = self._id("bos_token_id")
        # The first conversions of LLaMA state -1: there is no pad token.
        pad = None if self.fields.get("pad_token_id") == -1 else self._id("pad_token_id")
        suppressed = self._ids("suppress_tokens")
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if self._id(name) in suppressed:
                self._corrupt(name, "an id that suppress_tokens does not hold")
        start = self._start(bos) if task.net_kind == "encoder-decoder" else ()
        return GenerationSettings(
            default_max_length=self._whole_length(positions) if task.net_kind == "decoder" else None,
            defaults=self._defaults(positions, len(start), task.net_kind == "decoder"),
            eos_token_ids=eos,
            pad_token_id=pad if pad is not None else next(iter(eos), 0),
            bos_token_id=bos,
            decoder_start_token_ids=start,
            forced_bos_token_id=self._id("forced_bos_token_id"),
            forced_eos_token_id=self._id("forced_eos_token_id"),
            suppress_tokens=suppressed,
            begin_suppress_tokens=self._ids("begin_suppress_tokens"),
            # As in transformers, an end token alone is no bad word.
            bad_words_ids=tuple(words for words in self._bad_words() if words not in {(each,) for each in eos}),
            renormalize_logits=self.fields.get("renormalize_logits") is True,  # as transformers reads it
            prefix=prefix,
            origins=tuple(sorted(set(self.origins.values()))),
        )

    def _defaults(self, positions: int, start: int, decoder: bool) -> dict[str, Any]:
        defaults: dict[str, Any] = {"max_tokens": self._max_tokens(1 if decoder else start)}
        if least := self._min_tokens(start, decoder):
            defaults["min_tokens"] = least
        for name, off in OFF.items():
            if name in self.fields:
                value = self.fields[name]
                defaults[name] = off if value is None else value
        if (stops := self.fields.get("stop_strings")) is not None:
            defaults["stop_words"] = [stops] if isinstance(stops, str) else stops
        self._check(defaults)
        if stops and defaults.get("num_beams", 1) > 1:
            self._unsupported("stop_strings", "beside num_beams, as hfx looks for them when the search is over")
        room = positions - max(start, 1)
        defaults |= {name: min(defaults[name], room) for name in ("max_tokens", "min_tokens") if name in defaults}
        if self.fields.get("num_return_sequences", 1) not in (1, None):
            self._unsupported("num_return_sequences", "a text has one answer unless its request asks for more")
        return defaults

    def _check(self, defaults: Mapping[str, Any]) -> None:
        """Refuse defaults that the server would refuse in a request without settings of its own."""
        from hfx.python_backends.engine.generation_settings import DECODING, checked
        from hfx.python_backends.engine.request import Settings
        from hfx.python_backends.errors import InvalidRequest

        try:
            Settings(**{name: value for name, value in defaults.items() if name in {each.name for each in DECODING}})
            checked(defaults)
        except InvalidRequest as refusal:
            named = {"min_tokens": "min_new_tokens", "stop_words": "stop_strings"}.get(refusal.field, refusal.field)
            self._corrupt(named if named in self.fields else "min_length", refusal.allowed)

    def _max_tokens(self, start: int) -> int:
        """Return the limit of new tokens; transformers' max_length also counts the decoder's start tokens."""
        tokens, length = self._length("max_new_tokens"), self._length("max_length")
        if tokens is None and length is not None:
            tokens = length if length == UNSET_LENGTH and self.written_by_4 else length - start
            if tokens < 1:
                self._corrupt("max_length", f"above {start}, the tokens that the decoder starts with")
        return tokens or DEFAULT_MAX_TOKENS

    def _whole_length(self, positions: int) -> int | None:
        """Return the limit of a decoder's prompt and output together; None if the checkpoint counts new tokens."""
        length = None if self._length("max_new_tokens") is not None else self._length("max_length")
        if length is None or (length == UNSET_LENGTH and self.written_by_4):
            return None
        return min(length, positions)

    def _min_tokens(self, start: int, decoder: bool) -> int:
        least = self._length("min_new_tokens")
        if least is not None:
            return least
        length = self._length("min_length") or 0
        if length and decoder:
            self._unsupported("min_length", "it counts the prompt, which every request brings; use min_new_tokens")
        return max(length - start, 0)

    def _length(self, name: str) -> int | None:
        value = self.fields.get(name)
        if value is None:
            return None
        least = int(name.startswith("max"))
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LONGEST:
            self._corrupt(name, f"a whole number from {least} to {LONGEST}")
        return value

    def _start(self, bos: int | None) -> Ids:
        """Return the tokens (one) that an encoder-decoder's answers begin with."""
        start = self._id("decoder_start_token_id")
        start = bos if start is None else start
        if start is None:
            raise CheckpointCorrupt(
                f"{FILE} and config.json have no decoder_start_token_id (nor bos_token_id).",
                "Add the id of the token that this model's answers begin with.",
            )
        return (start,)

    def _id(self, name: str) -> int | None:
        ids = self._ids(name)
        if len(ids) > 1:
            self._unsupported(name, "it is one token here")
        return next(iter(ids), None)

    def _ids(self, name: str) -> Ids:
        value = self.fields.get(name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        if len(ids) > max(self.vocabulary, MOST_LISTED) or not all(map(self._is_token, ids)):
            self._corrupt(name, f"token ids from 0 to {self.vocabulary - 1}")
        return tuple(dict.fromkeys(ids))

    def _bad_words(self) -> list[Ids]:
        value = self.fields.get("bad_words_ids")
        if value is None:
            return []
        words: list[Any] = value if isinstance(value, list) and len(value) <= MOST_LISTED else [()]
        if not all(isinstance(w, list) and 0 < len(w) <= MOST_LISTED and all(map(self._is_token, w)) for w in words):
            self._corrupt("bad_words_ids", f"a list of lists of token ids from 0 to {self.vocabulary - 1}")
        return [tuple(each) for each in words]

    def _is_token(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocabulary

    def _corrupt(self, name: str, allowed: str) -> NoReturn:
        value = shown(self.fields.get(name))
        raise CheckpointCorrupt(f"{name} in {self.origins.get(name, FILE)} is {value}; it should be {allowed}.", REMOVE)

    def _unsupported(self, name: str, reason: str) -> NoReturn:
        value = shown(self.fields.get(name))
        raise CheckpointUnsupported(f"{name} in {self.origins.get(name, FILE)} is {value}: {reason}.", REMOVE)
