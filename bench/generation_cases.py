"""What generators are asked for: batches of equal requests, and requests that arrive one by one; and of which models.

The same for every way: token ids, counts and arrival times follow from these values alone. Knows no library.
"""

from __future__ import annotations

import dataclasses
import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import model

THREADS = 2
SEED = 0
# Ids below every vocabulary that is measured, and above the special ones.
FIRST_ID, LAST_ID = 100, 30_000


@dataclass(frozen=True)
class Batch:
    """`rows` prompts of `prompt` tokens at once, each continued by exactly `new`, whatever the model would end with."""

    rows: int
    prompt: int
    new: int
    beams: int = 1
    ngram: int = 0

    @property
    def label(self) -> str:
        """The case in a table."""
        beams = f", {self.beams} beams" if self.beams > 1 else ""
        return f"{self.prompt} to {self.new} tokens{beams}, B={self.rows}"

    @property
    def positions(self) -> int:
        """Positions that a decoder-only model fills, rounded up to a multiple of 32."""
        return -(-(self.prompt + self.new) // 32) * 32

    def prompts(self) -> list[list[int]]:
        """Token ids, the same at every call."""
        chance = random.Random(SEED)
        return [[chance.randint(FIRST_ID, LAST_ID) for _ in range(self.prompt)] for _ in range(self.rows)]


@dataclass(frozen=True)
class Arrival:
    """One request: when it comes (seconds from the start), what it holds, and how many tokens it wants."""

    at: float
    prompt: tuple[int, ...]
    new: int


@dataclass(frozen=True)
class Load:
    """`count` greedy requests by a Poisson process of `rate` a second (infinite: all at once).

    Lengths are log-uniform: prompts of 8 to `longest_prompt` tokens, answers of 8 to `longest_answer`. `slots` is how
    many rows a continuous batch may have, `batch` how many a static one, in which prompts may be so many times as long
    as another as `unlike` says. The same requests in the same order come at every rate.
    """

    rate: float
    count: int
    longest_prompt: int = 512
    longest_answer: int = 256
    slots: int = 32
    batch: int = 8
    unlike: float = 1.5

    def arrivals(self) -> tuple[Arrival, ...]:
        """The requests in order of their time."""
        chance, at, found = random.Random(SEED), 0.0, []
        for _ in range(self.count):
            at += chance.expovariate(1.0) / self.rate
            ids = tuple(chance.randint(FIRST_ID, LAST_ID) for _ in range(_length(chance, self.longest_prompt)))
            found.append(Arrival(at, ids, _length(chance, self.longest_answer)))
        return tuple(found)


def _length(chance: random.Random, longest: int) -> int:
    return round(math.exp(chance.uniform(math.log(8), math.log(longest))))


@dataclass(frozen=True)
class Model(model.Model):
    """A model that is measured; where it is `tiny`, of its architecture alone."""

    tiny: bool = False


NAMES = ("distilgpt2", "flan-t5-base", "bart-large-cnn")
_TINY: dict[str, dict[str, Any]] = {
    "distilgpt2": {"n_embd": 128, "n_layer": 2, "n_head": 4},
    "flan-t5-base": {
        "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    },
    "bart-large-cnn": {
        "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    },
}  # fmt: skip


def open_model(name: str, tiny: bool = False) -> Model:
    """The zoo's full-size checkpoint `name`, or the same architecture small enough for a smoke run."""
    from tests import zoo

    folder = _tiny(name) if tiny else zoo.shape(name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    start = config["decoder_start_token_id"] if config.get("is_encoder_decoder") else None
    return Model(name, str(folder), str(folder), config["model_type"], start, config["vocab_size"], tiny)


def _tiny(name: str) -> Path:
    from tests.zoo import cache, shapes

    shape = shapes.BY_NAME[name]
    small = dataclasses.replace(shape, config={**shape.config, **_TINY[name]})
    return cache.built(name, cache.digest(small, ("shapes.py",)), lambda folder: shapes.write(small, folder))
