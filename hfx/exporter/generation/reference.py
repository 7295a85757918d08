"""The checkpoint's side of the gate: torch's results for the prompts, small enough to outlive the model in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.exporter.encoder.kinds.kind import Answer
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import Effort, Ids, LongText, Prompt, open_encoder, spread_indices
from hfx.exporter.generation.tasks import DATA_SETTINGS
from hfx.exporter.generation.torch_generator import Sources, TorchGenerator
from hfx.exporter.labelled_data import LabelledData
from hfx.exporter.progress import counted
from hfx.exporter.verify import Recorded, check_drop
from hfx.local import Device
from hfx.local.generator import LocalGenerator
from hfx.python_backends.engine.request import Settings
from hfx.python_backends.generation.configuration import Configuration, resolve_config

BEST = 8  # the number of logits that are stored of each position
KEPT_BYTES = 16 << 20  # the size of the whole rows of logits that are stored, spread over all positions
COLUMNS = 4096  # the number of tokens whose logits are stored for each place of a long text
RECORDED_TEXTS = 64
DEFAULT_BEAMS = 4  # for checkpoints that do not search with beams by default
ALONE = 2  # prompts that torch runs again, alone, to measure its own noise; they give hundreds of thousands of logits
# Settings with which generate() uses nothing but the logits: greedy runs show whether the logits are right.
PLAIN: Mapping[str, Any] = {
    "num_beams": 1, "do_sample": False, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "early_stopping": False, "num_return_sequences": 1, "min_length": 0, "min_new_tokens": None,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """The amount of work with the prompts, and the engine's settings for greedy decoding and for beams."""

    effort: Effort
    greedy: Settings
    beams: Settings


def make_work(plan: GeneratorPlan, version: Path, effort: Effort) -> Work:
    """Return the work for the staged model in `version`; its settings come from the files that are published."""
    configuration = Configuration.read(version)
    greedy = plain_fields(min(effort.tokens, configuration.most_tokens))
    tokens = min(effort.beam_tokens, configuration.most_tokens)
    beams = int(plan.settings.defaults.get("num_beams", 1))
    searched = {
        names.NUM_BEAMS: beams if beams > 1 else DEFAULT_BEAMS,
        names.DO_SAMPLE: False,
        names.MAX_TOKENS: tokens,
        names.MIN_TOKENS: min(int(plan.settings.defaults.get("min_tokens", 0)), tokens // 2),
    }
    return Work(effort, resolve_config(greedy, configuration), resolve_config(searched, configuration))


def plain_fields(tokens: int) -> dict[str, Any]:
    """Return the public fields of a greedy run that uses nothing but the logits; torch's settings for it are PLAIN."""
    return {
        names.MAX_TOKENS: tokens,
        names.MIN_TOKENS: 0,
        names.NUM_BEAMS: 1,
        names.DO_SAMPLE: False,
        names.NO_REPEAT_NGRAM_SIZE: 0,
        names.REPETITION_PENALTY: 1.0,
    }


@dataclass(frozen=True)
class Positions:
    """torch's logits along the greedy continuation of one prompt, before any processing.

    `best` [positions, BEST] holds the ids with the highest logits at each position, the highest first, and `logits`
    holds their logits. `rows` holds whole rows of logits by position.
    """

    best: NDArray[np.int64]
    logits: NDArray[np.float32]
    rows: Mapping[int, NDArray[np.float32]]


@dataclass(frozen=True)
class LongReference:
    """torch's logits at the places of a long text: `positions` has an entry for each place, and no whole rows.

    `sample` [places, tokens] holds the logits of the tokens `columns`, and `past` [2 * layers, inputs, heads *
    head_dim] the keys and values of an encoder-decoder's inputs.
    """

    text: LongText
    positions: Positions
    columns: NDArray[np.int64]
    sample: NDArray[np.float32]
    past: NDArray[np.float32] | None


@dataclass(frozen=True)
class Reference:
    """The checkpoint's continuations, as `work` states.

    There are greedy continuations of all `prompts`, and continuations by beam search of the first prompts.

    Continuations hold the ids after the prompt, including forced tokens and the end. `largest` is the
    largest magnitude of a logit (at least 1). `noise` is the largest difference of two torch runs of the same
    positions, in a batch and alone: logits that are no further apart are equal.
    """

    parameters: int
    work: Work
    prompts: tuple[Prompt, ...]
    greedy: tuple[Ids, ...]
    positions: tuple[Positions, ...]
    noise: float
    largest: float
    beams: tuple[Ids, ...]
    beam_scores: tuple[float, ...]
    long: tuple[LongReference, ...] = ()


def make_reference(
    generator: TorchGenerator, prompts: Sequence[Prompt], work: Work, long: Sequence[LongText] = ()
) -> Reference:
    """Continue `prompts` in torch as `work` states. The texts in `long` are only read, not continued."""
    ids = [prompt.ids for prompt in prompts]
    sources = generator.encode(ids)
    greedy, _ = generator.generate(ids, sources, **PLAIN, max_new_tokens=work.greedy.max_tokens)
    positions, largest, noise = _positions(generator, ids, greedy, sources)
    searched: tuple[list[Ids], list[float]] = ([], [])
    beams, beam_texts = work.beams, work.effort.beam_texts
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
        work=work,
        prompts=tuple(prompts),
        greedy=tuple(greedy),
        positions=positions,
        noise=noise,
        largest=largest,
        beams=tuple(searched[0]),
        beam_scores=tuple(searched[1]),
        long=tuple(_long(generator, text) for text in counted(long, "long texts")),
    )


def recorded(reference: Reference, text_of: Callable[[Ids], str]) -> Recorded:
    """Return requests for greedy continuations of the prompts, and the checkpoint's answers, for `hfx verify`."""
    fields = plain_fields(reference.work.greedy.max_tokens)
    requests = [{names.TEXT_INPUT: prompt.text, **fields} for prompt in reference.prompts[:RECORDED_TEXTS]]
    answers = [{names.TEXT_OUTPUT: text_of(ids)} for ids in reference.greedy[:RECORDED_TEXTS]]
    return Recorded(tuple(requests), tuple(answers))


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
    """Return logits along each greedy continuation, the largest logit of all (at least 1), and torch's noise."""
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


@dataclass(frozen=True)
class DataReference:
    """A file of labelled data, and the value of the metric that the checkpoint reaches on it in torch."""

    file: str
    data: LabelledData
    torch: float


def texts_of(labelled: Mapping[str, LabelledData]) -> list[str]:
    """Return the texts of all files."""
    return [request[names.TEXT_INPUT] for data in labelled.values() for request in data.requests]


def answer_data(
    plan: GeneratorPlan, labelled: Mapping[str, LabelledData], generator: TorchGenerator, version: Path
) -> tuple[DataReference, ...]:
    """Answer each file in torch, with the checkpoint's own generation settings, and measure the answers."""
    metric, references = plan.kind.metrics[plan.kind.metric_name], []
    for file, data in labelled.items():
        answers = _answers(generator, version, texts_of({file: data}))
        references.append(DataReference(file, data, metric(answers, data.targets)))
    return tuple(references)


def measure_data(
    plan: GeneratorPlan, device: Device, model: LocalGenerator, references: Sequence[DataReference]
) -> dict[str, float]:
    """Return the metric of `model` by file. Raises VerificationFailed if it is too far below torch's."""
    values = {}
    for reference in references:
        answers = model.infer_all([{**request, **DATA_SETTINGS} for request in reference.data.requests])
        value = plan.kind.metrics[plan.kind.metric_name](answers, reference.data.targets)
        check_drop(plan, plan.kind.metric_name, reference.file, device, reference.torch, value)
        values[reference.file] = value
    return values


def _answers(generator: TorchGenerator, version: Path, texts: Sequence[str]) -> list[Answer]:
    encoder = open_encoder(version)
    config = resolve_config(DATA_SETTINGS, Configuration.read(version))
    requests = [encoder.encode(text, config) for text in texts]
    by_length: dict[int, list[int]] = {}
    for index, request in enumerate(requests):
        by_length.setdefault(request.settings.max_tokens, []).append(index)
    answers: list[Answer] = [{}] * len(texts)
    for tokens, members in by_length.items():
        continuations, _ = generator.generate(
            [requests[i].prompt for i in members], do_sample=False, max_new_tokens=tokens
        )
        for index, ids in zip(members, continuations, strict=True):
            answers[index] = {names.TEXT_OUTPUT: generator.text(ids)}
    return answers
