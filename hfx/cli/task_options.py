"""The options of `hfx infer` that become input tensors: each field is named like its tensor, None where not given.

One group for what encoders are asked, one for how generators write. Ranges are the models' to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from typer import Option


class EarlyStopping(StrEnum):
    """When a beam search is over."""

    TRUE = "true"
    FALSE = "false"
    NEVER = "never"


class Long(StrEnum):
    """What becomes of a text that is longer than the model reads."""

    ERROR = "error"
    TRUNCATE = "truncate"
    CHUNK = "chunk"


class Merge(StrEnum):
    """How the answers to a text's chunks become one."""

    CONCAT = "concat"
    RECURSIVE = "recursive"


@dataclass(frozen=True)
class EncoderOptions:
    """What an encoder is asked; `top_k` is sampling's, too."""

    candidate_labels: Annotated[str | None, Option("--labels", help="Zero-shot: the candidate labels, A,B.")] = None
    multi_label: Annotated[
        bool | None, Option("--multi-label/--single-label", help="Zero-shot: judge each label by itself.")
    ] = None
    context: Annotated[str | None, Option(help="Question answering: where the answer is.")] = None
    top_k: Annotated[
        int | None, Option(help="Classification: how many labels. Sampling: of how many tokens; 0 of all.")
    ] = None


@dataclass(frozen=True)
class GenerationOptions:
    """How a generator writes; what is left out is as the model's generation_config.json says."""

    max_tokens: Annotated[int | None, Option(help="Generation: new tokens at most.")] = None
    min_tokens: Annotated[int | None, Option(help="Generation: new tokens at least.")] = None
    num_beams: Annotated[int | None, Option(help="Beams to search with; 1 is greedy.")] = None
    length_penalty: Annotated[float | None, Option(help="Beams: the higher, the longer texts.")] = None
    early_stopping: Annotated[EarlyStopping | None, Option(help="Beams: end with enough texts.")] = None
    num_return_sequences: Annotated[int | None, Option(help="Texts for each TEXT; only with --local.")] = None
    do_sample: Annotated[bool | None, Option("--sample/--greedy", help="Draw tokens, or take the likeliest.")] = None
    temperature: Annotated[float | None, Option(help="Sampling: below 1 is safer, above 1 wilder.")] = None
    top_p: Annotated[float | None, Option(help="Sampling: from the likeliest with this share.")] = None
    min_p: Annotated[float | None, Option(help="Sampling: least share of the likeliest's.")] = None
    seed: Annotated[int | None, Option(help="Sampling: the same seed gives the same text.")] = None
    stop_words: Annotated[
        list[str] | None, Option("--stop", help="Text to stop before; may be given several times.")
    ] = None
    repetition_penalty: Annotated[float | None, Option(help="Above 1: against tokens seen before.")] = None
    no_repeat_ngram_size: Annotated[int | None, Option(help="No sequence of so many tokens twice.")] = None
    long: Annotated[Long | None, Option(help="A text that is too long for the model.")] = None
    merge: Annotated[Merge | None, Option(help="Chunks: how their answers become one.")] = None
    overlap: Annotated[int | None, Option(help="Chunks: sentences that two share.")] = None
    source_lang: Annotated[str | None, Option(help="Translation: the code of the text's language.")] = None
    target_lang: Annotated[str | None, Option(help="Translation: the code of the answer's language.")] = None
    return_log_probs: Annotated[
        bool | None, Option("--log-probs/--no-log-probs", help="Generation: the tokens' log-probabilities.")
    ] = None
