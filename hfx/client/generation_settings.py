"""The settings of a generated text, as an object and as keyword arguments.

Made by `make docs` from the table in hfx/python_backends/engine/generation_settings.py: change that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict

from hfx.client.setting_types import checked_types


@dataclass(frozen=True)
class GenerationSettings:
    """How a text is generated; what is None is as the model's generation_config.json says.

    `max_tokens`            New tokens at most (a whole number of at least 1)
    `min_tokens`            New tokens at least (a whole number of at least 0)
    `num_beams`             Beams to search with; 1 is no search (a whole number from 1 to 64)
    `do_sample`             Draw tokens at random, or take the likeliest; drawn if a setting of sampling is set
    `temperature`           Sampling: below 1 favours likely tokens, above 1 unlikely ones; 0: no sampling (a number
                            from 0.001 to 100)
    `top_k`                 Sampling: from this many of the likeliest tokens; 0: from all (a whole number of at least 0)
    `top_p`                 Sampling: from the likeliest tokens with this share of the probability (a number from 0 to
                            1)
    `min_p`                 Sampling: least probability, as a share of the likeliest token's (a number from 0 to 1)
    `typical_p`             Sampling: from the most typical tokens (locally typical sampling) with this share of the
                            probability (a number from 0.001 to 1)
    `epsilon_cutoff`        Sampling: from tokens with at least this probability, and the likeliest (a number from 0 to
                            0.999)
    `seed`                  The same seed gives the same text; drawn if not set (a whole number from 0 to
                            18446744073709551615)
    `repetition_penalty`    Above 1: against tokens that were there before (a number from 0.01 to 100)
    `no_repeat_ngram_size`  No sequence of this many tokens twice; 0: no such rule (a whole number of at least 0)
    `length_penalty`        Beam search: above 0 favours longer texts, below 0 shorter ones (a number from -10 to 10)
    `early_stopping`        Beam search: end with enough texts (true), when better ones are unlikely (false) or
                            impossible (never)
    `stop_words`            End before one of these texts of 1 to 512 characters (a list of at most 64 texts)
    `long`                  What to do with a text that is too long for the model; chunk (with an encoder) answers it
                            part by part
    `merge`                 Chunks: how their answers become one; recursive: by answering the answers again
    `overlap`               Chunks: sentences that two share (a whole number from 0 to 16)
    `source_lang`           Translation: the code of the text's language, the model's own: fra_Latn, fr_XX, fr
    `target_lang`           Translation: the code of the answer's language
    `add_special_tokens`    Put the tokenizer's special tokens around the text; false for one that has its own
    `return_log_probs`      The tokens' log-probabilities
    `logprobs`              The tokens, and this many of the likeliest in the place of each; not with beams (a whole
                            number from 0 to 20)
    """

    max_tokens: int | None = None
    min_tokens: int | None = None
    num_beams: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    epsilon_cutoff: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop_words: Iterable[str] | None = None
    long: Literal["error", "truncate", "chunk"] | None = None
    merge: Literal["concat", "recursive"] | None = None
    overlap: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    add_special_tokens: bool | None = None
    return_log_probs: bool | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        for name, value in checked_types(vars(self)).items():
            object.__setattr__(self, name, value)


class Settings(TypedDict, total=False):
    """GenerationSettings as keyword arguments."""

    max_tokens: int | None
    min_tokens: int | None
    num_beams: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    seed: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    stop_words: Iterable[str] | None
    long: Literal["error", "truncate", "chunk"] | None
    merge: Literal["concat", "recursive"] | None
    overlap: int | None
    source_lang: str | None
    target_lang: str | None
    add_special_tokens: bool | None
    return_log_probs: bool | None
    logprobs: int | None
    # Names of other servers.
    max_new_tokens: int | None
    beam_width: int | None
    stop: str | Iterable[str] | None
