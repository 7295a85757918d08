"""Chooses the texts that the gate continues: the user's own first, then bundled ones, cut to a length in tokens.

The choice is the same in every export of a checkpoint. A text is cut between two of its tokens, so that it can be sent
to the published model as it is. A large checkpoint continues fewer and shorter texts, because torch is slow:
BART-large's decoder reads 0.8 GB of weights for every step, and its export would take an hour with the texts of a small
model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hfx.errors import VerificationFailed
from hfx.exporter.generation.folders import TOKENIZER
from hfx.python_backends.engine.plan import Limits
from hfx.python_backends.generation.configuration import Configuration, resolve_config
from hfx.python_backends.generation.prompts import PromptEncoder
from hfx.python_backends.tokenizer_file import open_tokenizer

LONG_TOKENS = 400  # more tokens than the engine runs at once
SHOWN = 200
Ids = tuple[int, ...]
ROWS, STEPS = 16, 8
CHUNK = Limits().chunk
# The number of inputs that one of the rows holds before its steps (see `starts`): more tokens than most prompts have.
EARLY = 92
REPEATS = (1, 4, 16, 64, 256)  # how often all texts are repeated if they are shorter than the model's limit
# The most scores of one layer's attention in torch: 512 MB of float32.
MOST_SCORES = 1 << 27


@dataclass(frozen=True)
class Effort:
    """The amount of work for the gate.

    `texts` are continued greedily by `tokens`, and the first `beam_texts` of them with beams by `beam_tokens`. A text
    has at most `prompt_tokens`; `long_texts` further texts are as long as the model allows, up to LONG_TOKENS. `alone`
    of the texts are also run alone and in smaller batches.
    """

    texts: int
    tokens: int
    beam_texts: int
    beam_tokens: int
    prompt_tokens: int
    long_texts: int
    alone: int


# Each effort with the largest number of parameters that it is for.
EFFORTS: tuple[tuple[float, Effort], ...] = (
    (60e6, Effort(texts=128, tokens=32, beam_texts=112, beam_tokens=24, prompt_tokens=128, long_texts=2, alone=24)),
    (200e6, Effort(texts=32, tokens=24, beam_texts=16, beam_tokens=16, prompt_tokens=64, long_texts=0, alone=8)),
    (float("inf"), Effort(texts=12, tokens=12, beam_texts=6, beam_tokens=8, prompt_tokens=40, long_texts=0, alone=3)),
)


def effort_for(parameters: int) -> Effort:
    """Return the effort for a checkpoint with this number of parameters."""
    return next(effort for most, effort in EFFORTS if parameters <= most)


@dataclass(frozen=True)
class Prompt:
    """A text and its tokens, special tokens included; `own` is true for a text of --verify-data."""

    text: str
    ids: Ids
    own: bool = False


@dataclass(frozen=True)
class Reader:
    """Turns texts into prompts: a transformers tokenizer, the prefix of each text, and the longest prompt.

    `longest` is the model's limit in tokens, including those of the prefix and special tokens.
    """

    tokenizer: Any
    prefix: str
    longest: int


def choose_prompts(reader: Reader, own: Sequence[str], bundled: Sequence[str], effort: Effort) -> list[Prompt]:
    """Return as many prompts as `effort` states, from the user's `own` texts first.

    A bundled text with an unknown token is replaced by those of its words that the tokenizer can spell, because unknown
    tokens tell the model nothing.
    """
    most = min(effort.prompt_tokens, reader.longest)
    spelled = [part for text in bundled for part in _spelled(reader.tokenizer, text)] or list(bundled)
    chosen = _spread([_prompt(reader, text, most, own=True) for text in own], effort.texts)
    chosen += _spread([_prompt(reader, text, most) for text in spelled], effort.texts - len(chosen))
    if most < (length := min(LONG_TOKENS, reader.longest)):
        parts = range(effort.long_texts)
        chosen += [_prompt(reader, " ".join(spelled[part :: effort.long_texts]), length) for part in parts]
    return _distinct(chosen)


def check_tokens(tokenizer: Any, version: Path, texts: Sequence[str]) -> int:
    """Compare the tokens of `texts` in the staged model in `version` with transformers' own tokens.

    Texts that are too long are cut. Returns how many texts were compared. Raises VerificationFailed if any differ.
    """
    configuration, encoder = Configuration.read(version), open_encoder(version)
    config = resolve_config({"long": "truncate", "do_sample": False, "max_tokens": 1}, configuration)
    longest = configuration.max_source or configuration.max_length - 1
    side = "right" if configuration.has_encoder else "left"
    compared = 0
    for text in texts:
        expected = truncated(tokenizer, configuration.prefix + text, longest, side)
        if not expected:
            continue  # nothing to continue
        if encoder.encode(text, config).prompt != expected:
            raise _differ(repr(text if len(text) <= SHOWN else text[:SHOWN] + "..."))
        compared += 1
    return compared


def check_languages(tokenizer: Any, version: Path, text: str) -> int:
    """Compare the tokens of `text` in every language of the staged model, and return the number of languages.

    Raises VerificationFailed if any differ.
    """
    configuration = Configuration.read(version)
    if configuration.languages is None or not hasattr(tokenizer, "set_src_lang_special_tokens"):
        return 0
    encoder, default = open_encoder(version), tokenizer.src_lang
    try:
        for code in configuration.languages.ids:
            tokenizer.src_lang = code
            ids = encoder.encode(text, resolve_config({"source_lang": code}, configuration)).prompt
            if ids != tuple(tokenizer(text)["input_ids"]):
                raise _differ(f"{text!r} in the language {code}")
    finally:
        tokenizer.src_lang = default
    return len(configuration.languages.ids)


def _differ(text: str) -> VerificationFailed:
    return VerificationFailed(
        f"The served tokenizer and the checkpoint's differ on {text}.",
        "Please report this checkpoint's tokenizer; nothing was published.",
    )


def open_encoder(version: Path) -> PromptEncoder:
    """Return the PromptEncoder with which the staged model in `version` would be served."""
    return PromptEncoder(open_tokenizer(version / TOKENIZER), Configuration.read(version))


def truncated(tokenizer: Any, text: str, longest: int, side: str) -> Ids:
    """Return at most `longest` ids of a text, special tokens included; transformers cuts it at `side` (left, right)."""
    before = tokenizer.truncation_side
    tokenizer.truncation_side = side
    try:
        return tuple(tokenizer(text, truncation=True, max_length=longest, verbose=False)["input_ids"])
    finally:
        tokenizer.truncation_side = before


def _prompt(reader: Reader, text: str, most: int, own: bool = False) -> Prompt:
    """Return the beginning of `text` that has at most `most` tokens.

    The tokens are those of the cut text, which may differ from the tokens of the whole text.
    """
    while text:
        ids = tuple(reader.tokenizer(reader.prefix + text, verbose=False)["input_ids"])
        if len(ids) <= most:
            return Prompt(text, ids, own)
        offsets = reader.tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, verbose=False)[
            "offset_mapping"
        ]
        kept = max(len(offsets) - (len(ids) - most), 0)
        text = text[: min(offsets[kept - 1][1] if kept else 0, len(text) - 1)]
    return Prompt("", ())


def _spelled(tokenizer: Any, text: str) -> list[str]:
    """Return the text, or if it has an unknown token, those of its words that have none."""
    unknown = tokenizer.unk_token_id
    if unknown is None or unknown == tokenizer.eos_token_id:  # byte-level vocabularies spell everything
        return [text]
    parts = [text, *text.split()]
    known = [unknown not in ids for ids in tokenizer(parts, verbose=False)["input_ids"]]
    return [text] if known[0] else [part for part, is_known in zip(parts, known, strict=True) if is_known]


def _spread(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """Return at most `most` of the distinct prompts, evenly from the first to the last."""
    distinct = _distinct(prompts)
    return [distinct[i] for i in spread_indices(len(distinct), most)]


def spread_indices(total: int, most: int) -> list[int]:
    """Return at most `most` of the indices below `total`, evenly from the first to the last."""
    return [int(i) for i in np.linspace(0, total - 1, max(min(most, total), 0)).astype(int)]


def _distinct(prompts: Sequence[Prompt]) -> list[Prompt]:
    by_ids: dict[Ids, Prompt] = {}
    for prompt in prompts:
        if prompt.ids and prompt.text.strip():
            by_ids.setdefault(prompt.ids, prompt)
    return list(by_ids.values())


@dataclass(frozen=True)
class LongText:
    """A long text: the tokens that the decoder reads (`inputs`), and the `source` of an encoder (empty without one).

    Row i holds the first `starts[i]` inputs before it runs `steps` decode steps.
    """

    source: Ids
    inputs: Ids
    starts: Ids
    steps: int

    @property
    def places(self) -> list[int]:
        """The indices of the inputs behind which the next token is predicted.

        They are the inputs of the steps and, for a decoder, the last input of each prompt.
        """
        first = 0 if self.source else -1
        return sorted({start + at for start in self.starts for at in range(first, self.steps)})

    @property
    def longest(self) -> int:
        """The number of tokens of the longest prompt."""
        return len(self.source) or self.starts[-1]


@dataclass(frozen=True)
class LongReader:
    """Makes long texts of texts, with a transformers tokenizer.

    `prefix` goes before a text, and a decoder begins with the tokens `start`. `max_length` and `max_source` (0 without
    an encoder) are the model's limits. Tokens from `vocab_size` on are left out: some tokenizers have more tokens than
    their model. `heads` is the number of heads of one attention.
    """

    tokenizer: Any
    prefix: str
    start: Ids
    vocab_size: int
    heads: int
    max_length: int
    max_source: int

    def read(self, texts: Sequence[str]) -> list[LongText]:
        """Return one text at the model's limit, one just over a chunk of a prompt, and one between.

        A model with a low limit has fewer texts.
        """
        # The token of the last position is generated, and never read.
        inputs = self._lengths(self.max_length - 1)
        pairs = [(0, length) for length in inputs]
        if self.max_source:
            pairs = [
                (source, inputs[min(at, len(inputs) - 1, 1)])
                for at, source in enumerate(self._lengths(self.max_source))
            ]
        chosen = []
        for at, (source, length) in enumerate(pairs):
            first = at * len(texts) // len(pairs)
            text = self._text([*texts[first:], *texts[:first]], length, source)
            if text is not None:
                chosen.append(text)
        return chosen

    def _text(self, texts: Sequence[str], length: int, source: int) -> LongText | None:
        read = self._prompt(texts, source or length)
        inputs = self._written(texts[::-1], length) if source else read
        steps = min(STEPS, len(inputs) - 1)
        if not read or steps < 1:
            return None
        return LongText(read if source else (), inputs, starts(len(inputs), steps), steps)

    def _lengths(self, limit: int) -> list[int]:
        longest = min(limit, math.isqrt(MOST_SCORES // self.heads))
        short = min(CHUNK + 1 + STEPS, longest)
        return [longest, short, math.isqrt(longest * short)] if short < longest else [longest]

    def _prompt(self, texts: Sequence[str], length: int) -> Ids:
        """Return `length` tokens of a prompt, special tokens included; fewer if the repeated texts have no more."""
        ids: Ids = ()
        for times in REPEATS:
            ids = truncated(self.tokenizer, self.prefix + " ".join([*texts] * times), length, "right")
            if len(ids) == length:
                break
        return tuple(token for token in ids if token < self.vocab_size)

    def _written(self, texts: Sequence[str], length: int) -> Ids:
        """Return `length` inputs of a decoder with an encoder: its start tokens, then tokens of the texts."""
        special = {*self.tokenizer.all_special_ids}
        ids = self.tokenizer(" ".join(texts), add_special_tokens=False, verbose=False)["input_ids"]
        known = [token for token in ids if token < self.vocab_size and token not in special]
        return (*self.start, *known * (length // max(len(known), 1) + 1))[:length]


def starts(length: int, steps: int) -> Ids:
    """Return how many inputs each row holds before its steps.

    The steps of the last row end at the last input. Other rows start early in the text, at the ends of the first two
    chunks and of the last chunk, one token behind these ends, and evenly between.
    """
    last = length - steps
    ends = (CHUNK, 2 * CHUNK, last // CHUNK * CHUNK)
    chosen = {start for start in (last, EARLY, *ends, *(end + 1 for end in ends)) if 0 < start <= last}
    for index in spread_indices(last, ROWS):
        if len(chosen) < ROWS:
            chosen.add(index + 1)
    return tuple(sorted(chosen))
