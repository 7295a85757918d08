"""What is measured: models, texts and loads of the benchmarks, the same for every way. Nothing here measures."""

from __future__ import annotations

import bisect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.checkpoints import checkpoint
from bench.exports import exported
from bench.peers import Batch
from hfx.errors import UsageError
from hfx.names import MAX_TOKENS, MIN_TOKENS, NO_REPEAT_NGRAM_SIZE, NUM_BEAMS, TEXT_INPUT
from hfx.perf.load import LoadLimits, Open, Plan, Request, RequestSet, parse_lengths
from hfx.perf.load.requests import WORDS, settings_text

SEED, TIMEOUT, MOST_TEXTS = 0, 300.0, 512
FIRST_ID, LAST_ID = 100, 30_000  # token ids below every vocabulary that is measured, and above the special ones
FILLER, MOST_FILLERS, MOST_WORDS = " a", 64, 4_000_000
SENTENCE = "This is a generation for the work"
SENTENCES = "lognormal:22,0.5,64"  # tokens of texts whose lengths differ as those of the sentences of SST-2
SEED_TOKENS, SEED_RATE, SEED_SECONDS, SEED_BURST = 50, 50.0, 3.0, 512
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
class Served:
    """A shape that is exported with `slots` rows (a generator's) and served; `layers`: other values of its config."""

    shape: str
    slots: int | None = None
    layers: tuple[tuple[str, int], ...] = ()

    def checkpoint(self, tiny: bool) -> Path:
        """Its folder, or that of the same architecture small enough for a smoke run."""
        return checkpoint(self.shape, tiny, **dict(self.layers))

    def repository(self, precision: str, tiny: bool) -> Path:
        """Where it is published. Raises PeerFailed."""
        return exported(self.checkpoint(tiny), precision, self.slots)


@dataclass(frozen=True)
class Texts:
    """Requests: `text` again and again; or texts of so many tokens (`lengths`, as hfx.perf.load reads them).

    With "questions", the questions of FAQ. `answers` are lengths of the answers, drawn for each request.
    """

    text: str = ""
    lengths: str = ""
    answers: str = ""


@dataclass(frozen=True)
class Case:
    """A load: `requests` (or `seconds` of them) by `plan`. A peer in process gets its texts `rows` at once.

    `new` tokens are written for each (0: as the texts say, or a classifier).
    """

    name: str
    plan: Plan
    texts: Texts
    rows: int = 1
    requests: int | None = None
    seconds: float | None = None
    new: int = 0
    beams: int = 1
    ngram: int = 0
    slo: str = ""

    def request_set(self, count: Callable[[str], int]) -> RequestSet:
        """The requests; `count` gives the tokens of a text."""
        settings: dict[str, Any] = {MAX_TOKENS: self.new, MIN_TOKENS: self.new} if self.new else {}
        settings |= {NUM_BEAMS: self.beams, NO_REPEAT_NGRAM_SIZE: self.ngram} if self.beams > 1 else {}
        inputs: Mapping[str, Any] = {name: (value,) for name, value in settings.items()}
        if self.texts.text:
            texts = [PROMPT.format(*pair) for pair in FAQ] if self.texts.text == "questions" else [self.texts.text]
            return RequestSet(tuple(Request({TEXT_INPUT: (text,), **inputs}) for text in texts), self.name)
        amount = min(MOST_TEXTS, self.requests or MOST_TEXTS)
        chance, drawn = random.Random(SEED), parse_lengths(self.texts.lengths)
        texts = [text_of(drawn.draw(chance), count, chance) for _ in range(amount)]
        items = [Request({TEXT_INPUT: (text,), **inputs}) for text in texts]
        words = f"synthetic texts of {drawn.description} tokens{settings_text(inputs)}"
        if not self.texts.answers:
            return RequestSet(tuple(items), words)
        chance, drawn = random.Random(SEED), parse_lengths(self.texts.answers)
        lengths = [(drawn.draw(chance),) for _ in items]
        items = [Request({**each.inputs, MAX_TOKENS: new, MIN_TOKENS: new})
                 for each, new in zip(items, lengths, strict=True)]  # fmt: skip
        return RequestSet(tuple(items), words)

    @property
    def limits(self) -> LoadLimits:
        """When it ends, after a request of each caller that does not count."""
        warm = 0 if isinstance(self.plan, Open) else self.plan.callers
        return LoadLimits(requests=self.requests, seconds=self.seconds, warmup_requests=warm, timeout=TIMEOUT)

    def batch(self, requests: RequestSet) -> Batch:
        """What a peer in process gets at once."""
        texts = tuple(str(requests.at(number).inputs[TEXT_INPUT][0]) for number in range(self.rows))
        return Batch(texts, new=self.new, beams=self.beams, ngram=self.ngram)


def callers(count: int) -> str:
    """So many, in words."""
    return f"{count} caller{'s' * (count > 1)}"


def text_of(count: int, tokens: Callable[[str], int], chance: random.Random) -> str:
    """A text of exactly `count` tokens by `tokens`, special ones included. Raises UsageError where there is none."""
    drawn = chance.choices(WORDS, k=count)
    while tokens(" ".join(drawn)) < count and len(drawn) < MOST_WORDS:
        drawn += chance.choices(WORDS, k=len(drawn))
    # The most words that do not exceed it: the count rises with every word.
    least = bisect.bisect_right(range(1, len(drawn) + 1), count, key=lambda words: tokens(" ".join(drawn[:words])))
    text = " ".join(drawn[:least])
    for _ in range(MOST_FILLERS):  # a word of several tokens would overshoot: single letters fill up
        if tokens(text) >= count:
            break
        text += FILLER
    if tokens(text) != count:
        raise UsageError(f"No text has exactly {count} tokens for this model.", "Give more tokens.")
    return text


def token_counter(folder: Path) -> Callable[[str], int]:
    """How many tokens the tokenizer of a checkpoint makes of a text, special ones included."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    return lambda text: len(tokenizer(text, truncation=False, verbose=False)["input_ids"])


def prompts(rows: int, length: int) -> tuple[tuple[int, ...], ...]:
    """Random token ids, the same at every call."""
    chance = random.Random(SEED)
    return tuple(tuple(chance.randint(FIRST_ID, LAST_ID) for _ in range(length)) for _ in range(rows))
