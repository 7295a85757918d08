"""The texts that a scenario sends: one sentence again and again, exact or drawn lengths, questions, documents.

Everything follows from values and a seed, so every way and every round gets the same. It must not know servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hfx.names import MAX_TOKENS, MIN_TOKENS, TEXT_INPUT
from hfx.perf.load import Request, RequestSet, from_file, parse_lengths, synthetic
from hfx.perf.results.schema import Scalar

SEED = 0
Count = Callable[[str], int]

PROMPT = "Answer the question from the text. Text: {} Question: {}"
FAQ = (
    ("Parcels leave our house every weekday at four in the afternoon and arrive within three days. On islands it takes "
     "two days longer. Whoever orders before noon is served on the same day.", "When do parcels leave?"),
    ("A lamp may be sent back within thirty days if it was not used. Write the number of the order on the outside. The "
     "money is returned within a week of its arrival.", "How long may a lamp be kept before it is sent back?"),
    ("The app works without a network. What was changed is kept on the phone and sent as soon as there is a connection "
     "again, the oldest change first.", "What happens to changes that are made without a network?"),
    ("Members pay nine a month or ninety a year. Students pay half of it when they show a card of their school. The "
     "first month is free for everybody.", "What do students pay for a year?"),
    ("To change the password, open the settings, choose security, and type the old one once and the new one twice. A "
     "password has at least twelve characters.", "How many characters does a password have at least?"),
    ("The museum is open from ten to six, on Thursdays until nine, and closed on Mondays. Children under seven do not "
     "pay. Dogs stay outside.", "Until when is the museum open on Thursdays?"),
    ("Water the plant once a week in summer and once a month in winter. It likes light but no sun at noon. Yellow "
     "leaves say that it had too much.", "What do yellow leaves mean?"),
    ("The battery lasts eleven hours of video or three days of music. It is full again after eighty minutes. In the "
     "cold it lasts about half as long.", "How long does it take until the battery is full?"),
)  # fmt: skip


@dataclass(frozen=True)
class Data:
    """A file of the user's, and the column of its texts ("" where its name says so)."""

    path: Path
    column: str = ""


@dataclass(frozen=True)
class Texts:
    """Which texts: `kind` with its `text` or its `lengths` (as hfx.perf.load takes them; in tokens).

    `answers` are lengths of the answers, drawn for each request; `documents` may come from the user's file instead,
    cut to the longest length.
    """

    kind: Literal["same", "lengths", "questions", "documents"]
    text: str = ""
    lengths: str = ""
    answers: str = ""

    def shortened(self) -> Texts:
        """The same for a smoke run."""
        lengths = "fixed:24" if self.kind == "documents" else self.lengths
        return replace(self, lengths=lengths, answers="fixed:4" if self.answers else "")


def asks(
    texts: Texts, count: int, settings: Mapping[str, Scalar], tokens: Count | None, data: Data | None
) -> RequestSet:
    """COUNT requests with SETTINGS; TOKENS counts those of a text (None: lengths are in words).

    Raises UsageError for a file that can't be read.
    """
    exact = _exact(settings)
    if data is not None:
        found = from_file(data.path, _columns(data), exact, count)
        return _cut(found, texts, tokens) if texts.kind == "documents" else found
    if texts.kind == "same":
        return RequestSet((_ask(texts.text, exact),), f'"{texts.text}"')
    if texts.kind == "questions":
        return RequestSet(tuple(_ask(PROMPT.format(*pair), exact) for pair in FAQ), "questions about short texts")
    found = synthetic(count, parse_lengths(texts.lengths), SEED, exact, tokens=tokens)
    return _with_answers(found, texts.answers) if texts.answers else found


def check(data: Data) -> None:
    """Raise UsageError for a file that gives no texts: called before anything is made."""
    from_file(data.path, _columns(data), {}, 1)


def _columns(data: Data) -> dict[str, str]:
    return {TEXT_INPUT: data.column} if data.column else {}


def _ask(text: str, settings: Mapping[str, Scalar]) -> Request:
    return Request({TEXT_INPUT: (text,), **{name: (value,) for name, value in settings.items()}})


def _exact(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """SETTINGS in which an answer has neither fewer nor more tokens than said: peers are told the same."""
    if MAX_TOKENS in settings and MIN_TOKENS not in settings:
        return {**settings, MIN_TOKENS: settings[MAX_TOKENS]}
    return dict(settings)


def _with_answers(found: RequestSet, lengths: str) -> RequestSet:
    chance, drawn = random.Random(SEED), parse_lengths(lengths)
    items = []
    for ask in found.items:
        length = drawn.draw(chance)
        items.append(Request({**ask.inputs, MAX_TOKENS: (length,), MIN_TOKENS: (length,)}))
    return RequestSet(tuple(items), f"{found.words}, answers {lengths}")


def _cut(found: RequestSet, texts: Texts, tokens: Count | None) -> RequestSet:
    """The beginning of each text, of at most as many tokens as the lengths say."""
    most = int(texts.lengths.partition(":")[2])
    cut = [
        Request({**ask.inputs, TEXT_INPUT: (_head(str(ask.inputs[TEXT_INPUT][0]), most, tokens),)})
        for ask in found.items
    ]
    return RequestSet(tuple(cut), f"{found.words}, the first {most} {'tokens' if tokens else 'words'}")


def _head(text: str, most: int, tokens: Count | None) -> str:
    words = text.split()
    count: Count = tokens or (lambda part: len(part.split()))
    low, high = 1, len(words)
    while low < high:  # the most words that fit
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(" ".join(words[:middle])) <= most else (low, middle - 1)
    return " ".join(words[:low])


def counter(checkpoint: Path) -> Count:
    """How many tokens the checkpoint's tokenizer makes of a text, special ones included."""
    from transformers import AutoTokenizer

    from hfx.exporter.source import open_checkpoint

    tokenizer: Any = AutoTokenizer.from_pretrained(open_checkpoint(str(checkpoint)).view)
    return lambda text: len(tokenizer(text, truncation=False, verbose=False)["input_ids"])
