"""Labelled data of the user: what torch and the staged model make of it, by ROUGE-L or exact match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hfx import names
from hfx.exporter.generation.plan import GeneratorPlan
from hfx.exporter.generation.prompts import open_encoder
from hfx.exporter.generation.tasks import DATA_SETTINGS
from hfx.exporter.generation.torch_generator import TorchGenerator
from hfx.exporter.parity.data import LabelledData
from hfx.exporter.tasks.task import Answer
from hfx.exporter.verify import check_drop
from hfx.local import Device
from hfx.local.generator import LocalGenerator


@dataclass(frozen=True)
class DataReference:
    """A file of labelled data, and what the checkpoint in torch reaches on it."""

    file: str
    data: LabelledData
    torch: float


def texts_of(labelled: Mapping[str, LabelledData]) -> list[str]:
    """The texts of all files."""
    return [request[names.TEXT_INPUT] for data in labelled.values() for request in data.requests]


def answer_data(
    plan: GeneratorPlan, labelled: Mapping[str, LabelledData], generator: TorchGenerator, version: Path
) -> tuple[DataReference, ...]:
    """What the checkpoint's answers to each file reach, by its own generation settings."""
    metric, references = plan.task.metrics[plan.task.metric_name], []
    for file, data in labelled.items():
        answers = _answers(generator, version, texts_of({file: data}))
        references.append(DataReference(file, data, metric(answers, data.targets)))
    return tuple(references)


def measure_data(
    plan: GeneratorPlan, device: Device, model: LocalGenerator, references: Sequence[DataReference]
) -> dict[str, float]:
    """File -> the metric of `model`; VerificationFailed where it falls too far below torch's."""
    values = {}
    for reference in references:
        answers = model.infer_all([{**request, **DATA_SETTINGS} for request in reference.data.requests])
        value = plan.task.metrics[plan.task.metric_name](answers, reference.data.targets)
        check_drop(plan, reference.file, device, reference.torch, value)
        values[reference.file] = value
    return values


def _answers(generator: TorchGenerator, version: Path, texts: Sequence[str]) -> list[Answer]:
    from hfx.python_backends.generation.configuration import Configuration
    from hfx.python_backends.generation.settings import resolve_config

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
