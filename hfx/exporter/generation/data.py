"""Labelled data of the user: what torch and the staged model make of it, by ROUGE-L or exact match.

ROUGE-L is the F-measure of the longest common subsequence of words (Lin 2004).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.errors import VerificationFailed
from hfx.exporter.generation.limits import DEFAULT_MAX_DROP
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import open_encoder
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.parity.data import LabelledData, read_data
from hfx.local import Device
from hfx.local.generator import LocalGenerator

WORDS = re.compile(r"\w+")
# What a text is continued with that leaves all to the model, but for chance.
DEFAULTS = {names.DO_SAMPLE: False, names.LONG: "truncate"}


def words(text: str) -> list[str]:
    """The words of a text, in lower case. Unlike Google's rouge-score, of every script and not of ASCII alone."""
    return WORDS.findall(text.lower())


def rouge_l(answer: str, target: str) -> float:
    """ROUGE-L of one answer: the harmonic mean of its precision and recall; 0 where either has no word."""
    found, wanted = words(answer), words(target)
    common = _common(found, wanted)
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for column, other in enumerate(second, 1):
            above = row[column]
            row[column] = corner + 1 if word == other else max(above, row[column - 1])
            corner = above
    return row[-1]


def rouge(answers: Sequence[str], targets: Sequence[str]) -> float:
    """Mean ROUGE-L."""
    return sum(rouge_l(a, t) for a, t in zip(answers, targets, strict=True)) / len(targets)


def exact_match(answers: Sequence[str], targets: Sequence[str]) -> float:
    """Share of answers that are the target, but for outer blanks."""
    return sum(a.strip() == t.strip() for a, t in zip(answers, targets, strict=True)) / len(targets)


METRICS: Mapping[str, Callable[[Sequence[str], Sequence[str]], float]] = {"rouge": rouge, "exact_match": exact_match}


@dataclass(frozen=True)
class DataReference:
    """A file of labelled data, and what the checkpoint in torch reaches on it."""

    file: str
    data: LabelledData
    torch: float


def read_all(plan: GeneratorPlan) -> dict[str, LabelledData]:
    """All of --verify-data, by the files' names. Raises UsageError naming the file."""
    return {path.name: read_data(path, plan.task, plan.checkpoint.config) for path in plan.verify_data}


def texts_of(labelled: Mapping[str, LabelledData]) -> list[str]:
    """The texts of all files."""
    return [request[names.TEXT_INPUT] for data in labelled.values() for request in data.requests]


def answer_data(
    plan: GeneratorPlan, labelled: Mapping[str, LabelledData], generator: TorchGenerator, version: Path
) -> tuple[DataReference, ...]:
    """What the checkpoint's answers to each file reach, by its own generation settings."""
    found = []
    for file, data in labelled.items():
        answers = _answers(generator, version, [request[names.TEXT_INPUT] for request in data.requests])
        found.append(DataReference(file, data, METRICS[plan.task.metric_name](answers, data.targets)))
    return tuple(found)


def measure_data(
    plan: GeneratorPlan, device: Device, model: LocalGenerator, references: Sequence[DataReference]
) -> dict[str, float]:
    """File -> the metric of `model`; VerificationFailed where it falls too far below torch's."""
    found = {}
    most = DEFAULT_MAX_DROP if plan.max_drop is None else plan.max_drop
    for reference in references:
        answers = model.infer_all([{**request, **DEFAULTS} for request in reference.data.requests])
        texts = [answer[names.TEXT_OUTPUT] for answer in answers]
        value = METRICS[plan.task.metric_name](texts, reference.data.targets)
        if not reference.torch - value <= most:  # NaN fails
            raise VerificationFailed(
                f"{plan.task.metric_name} on {reference.file} falls from {reference.torch:.4f} (torch) to {value:.4f} "
                f"({device}), by more than {most:g}.",
                "Nothing was published. Use another --precision, or accept more with --max-drop.",
            )
        found[reference.file] = value
    return found


def _answers(generator: TorchGenerator, version: Path, texts: Sequence[str]) -> list[str]:
    from hfx.python_backends.generation.configuration import Configuration
    from hfx.python_backends.generation.settings import choose

    encoder = open_encoder(version)
    choices = choose(DEFAULTS, Configuration.read(version))
    prompts = [encoder.encode(text, choices) for text in texts]
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(prompt.settings.max_tokens, []).append(index)
    answers = [""] * len(texts)
    for tokens, members in by_length.items():
        found, _ = generator.generate([prompts[i].ids for i in members], do_sample=False, max_new_tokens=tokens)
        for index, ids in zip(members, found, strict=True):
            answers[index] = generator.text(ids)
    return answers
