"""The checkpoint's side of the gate: what torch makes of the prompts, kept so small that the model can be let go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.exporter.generation.long_texts import LongText
from hfx.exporter.generation.prompts import Ids, Prompt, spread_indices
from hfx.exporter.generation.torch_generator import Sources, TorchGenerator
from hfx.python_backends.engine.request import Settings

BEST = 8  # logits that are kept of each position
KEPT_BYTES = 16 << 20  # of whole rows of logits, spread over all positions
COLUMNS = 4096  # of the vocabulary, whose logits are kept of each place of a long text
ALONE = 2  # prompts that torch runs again, alone, to learn its own noise: their logits are 100,000s
# Settings of generate that need nothing but the logits: greedy runs show whether those are right.
PLAIN: Mapping[str, Any] = {
    "num_beams": 1, "do_sample": False, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "early_stopping": False, "num_return_sequences": 1, "min_length": 0, "min_new_tokens": None,
}  # fmt: skip


@dataclass(frozen=True)
class Positions:
    """torch's logits along the greedy continuation of one prompt, before any processing.

    `best` are the BEST ids at each position, highest logit first ([positions, BEST]), `logits` their logits; `rows`
    whole rows of logits, by position.
    """

    best: NDArray[np.int64]
    logits: NDArray[np.float32]
    rows: Mapping[int, NDArray[np.float32]]


@dataclass(frozen=True)
class LongReference:
    """torch's logits at the places of a long text: `positions` has one for each, in their order, and no whole rows.

    `sample` [places, tokens] are the logits of `columns` of the vocabulary, and `past` [2 * layers, inputs, heads *
    head_dim] an encoder-decoder's keys and values of its inputs.
    """

    text: LongText
    positions: Positions
    columns: NDArray[np.int64]
    sample: NDArray[np.float32]
    past: NDArray[np.float32] | None


@dataclass(frozen=True)
class Reference:
    """The checkpoint's continuations of `prompts`: greedy ones of all, and those with `num_beams` beams of the first.

    Ids are those after the prompt, forced ones and the end included. `noise` is the largest difference of two torch
    runs of the same positions, in a batch and alone: logits that are no further apart are equal.
    """

    parameters: int
    prompts: tuple[Prompt, ...]
    greedy: tuple[Ids, ...]
    positions: tuple[Positions, ...]
    noise: float
    largest: float
    num_beams: int
    beams: tuple[Ids, ...]
    beam_scores: tuple[float, ...]
    long: tuple[LongReference, ...] = ()


def make_reference(
    generator: TorchGenerator,
    prompts: Sequence[Prompt],
    tokens: int,
    beam_texts: int,
    beams: Settings,
    long: Sequence[LongText] = (),
) -> Reference:
    """Continue `prompts` by `tokens` tokens in torch, and the first `beam_texts` of them with the beams of `beams`.

    The texts of `long` are read, and not continued.
    """
    ids = [prompt.ids for prompt in prompts]
    sources = generator.encode(ids)
    greedy, _ = generator.generate(ids, sources, **PLAIN, max_new_tokens=tokens)
    positions, largest, noise = _positions(generator, ids, greedy, sources)
    searched: tuple[list[Ids], list[float]] = ([], [])
    if beam_texts:  # the checkpoint's penalties stay as they are
        searched = generator.generate(
            ids[:beam_texts],
            sources,
            num_beams=beams.num_beams,
            do_sample=False,
            num_return_sequences=1,
            max_new_tokens=beams.max_tokens,
            min_length=0,
            min_new_tokens=beams.min_tokens or None,
        )
    return Reference(
        parameters=generator.parameters,
        prompts=tuple(prompts),
        greedy=tuple(greedy),
        positions=positions,
        noise=noise,
        largest=largest,
        num_beams=beams.num_beams,
        beams=tuple(searched[0]),
        beam_scores=tuple(searched[1]),
        long=tuple(_long(generator, text) for text in long),
    )


def _long(generator: TorchGenerator, text: LongText) -> LongReference:
    logits, past = generator.logits_at(text.source, text.inputs, text.places)
    best = logits.topk(min(BEST, logits.shape[1]))
    columns = np.array(spread_indices(logits.shape[1], COLUMNS))
    return LongReference(
        text, Positions(best.indices.numpy(), best.values.numpy(), {}), columns, logits.numpy()[:, columns], past
    )


def _positions(
    generator: TorchGenerator, prompts: Sequence[Ids], greedy: Sequence[Ids], sources: Sources
) -> tuple[tuple[Positions, ...], float, float]:
    """What is kept of the logits along each greedy continuation, the largest of all (at least 1), and torch's noise."""
    total = sum(map(len, greedy))
    starts = np.cumsum([0, *map(len, greedy)])
    kept: dict[int, Positions] = {}
    largest, noise, whole_rows = 1.0, 0.0, np.empty(0, np.int64)
    alone = spread_indices(len(prompts), ALONE)
    for index, logits in generator.logits(prompts, greedy, sources):
        if not len(whole_rows):
            rows = max(1, min(total, KEPT_BYTES // (4 * logits.shape[1])))
            whole_rows = np.unique(np.linspace(0, total - 1, rows).astype(np.int64))
        kept_here = whole_rows[(whole_rows >= starts[index]) & (whole_rows < starts[index + 1])] - starts[index]
        best = logits.topk(min(BEST, logits.shape[1]))
        rows_kept = {int(p): logits[p].numpy().copy() for p in kept_here}
        kept[index] = Positions(best.indices.numpy(), best.values.numpy(), rows_kept)
        largest = max(largest, float(logits.abs().max()))
        if index in alone:
            _, again = next(generator.logits([prompts[index]], [greedy[index]]))
            noise = max(noise, float((again - logits).abs().max()))
    return tuple(kept[index] for index in range(len(prompts))), largest, noise
