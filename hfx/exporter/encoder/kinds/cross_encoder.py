"""Text ranking: a cross-encoder scores how well a text answers a query. One row is one pair.

A caller ranks texts by their scores; pairs of several callers share a batch. A cross-encoder with several labels has a
score for each label, as CrossEncoder.predict returns them; it ranks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from hfx import names
from hfx.exporter.encoder.checkpoint.architectures import DECODERS
from hfx.exporter.encoder.checkpoint.module_list import MODULES
from hfx.exporter.encoder.checkpoint.pair_templates import PairTemplate, read_template
from hfx.exporter.encoder.checkpoint.pooling import AnswerLogits, Pooling, make_pooler
from hfx.exporter.encoder.checkpoint.sentence_transformers import read_activation, read_prompts, read_scoring
from hfx.exporter.encoder.kinds.kind import (
    Answer,
    Comparison,
    Config,
    EncoderKind,
    Request,
    Settings,
    default_labels,
    labels_of,
    logits_of_labels,
    omitted,
    width,
)
from hfx.exporter.options import ExportOptions
from hfx.exporter.ranking import spearman
from hfx.exporter.source import Checkpoint
from hfx.names import APPLY_SOFTMAX, RAW_SCORES, Kind, Task
from hfx.python_backends.tasks import PROMPTS
from hfx.python_backends.templates import FILLERS, cut, rendered, tail
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

CAUSAL_MODELS = ("ForCausalLM", "LMHeadModel")
# The characters of a sample's query. A character has at most 4 bytes; a query may have 16 bytes for each of its at
# least 16 tokens.
QUERY_CHARACTERS = 64
DISTANCE = 7  # from a text to the text whose beginning is its query, if the query is not the text's own beginning
# Scores that differ by more are not the same answer: 5 points of a probability, 5 % of a logit beyond 1.
SAME_SCORE = 0.05


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(EncoderKind):
    """A cross-encoder that gives a pair one score.

    If the score is made of hidden states, `pooling` says how. `labels` are the labels of the scores (none: the labels
    in config.json). `activation` turns logits into scores, and a `template` turns a pair into one text.
    """

    name: ClassVar[Kind] = Kind.CROSS_ENCODER
    task: ClassVar[Task] = Task.TEXT_RANKING
    architectures: ClassVar[tuple[str, ...]] = ("ForSequenceClassification",)
    by_library: ClassVar[bool] = True
    ranks: ClassVar[bool] = True
    metric_name: ClassVar[str] = "spearman"

    auto_class: str = "AutoModelForSequenceClassification"
    labels: tuple[str, ...] = ()
    activation: str = ""
    pooling: Pooling | None = None
    template: PairTemplate | None = None

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        pooling, labels = scores_of(checkpoint)
        scores_answers = isinstance(pooling, AnswerLogits)
        template = read_template(checkpoint, (checkpoint.folder / MODULES).is_file(), scores_answers)
        prompts = None
        if template is None or template.prompted is not None:  # a template has its own place for a prompt
            may_be_empty = template is not None or (pooling is not None and not pooling.pools_prompt)
            prompts = read_prompts(checkpoint.folder, (), may_be_empty=may_be_empty)
        softmax = (APPLY_SOFTMAX,) if len(labels) > 1 else ()  # the softmax of one score would be 1
        return {
            **({} if pooling is None else cls.pooled()),
            "labels": labels,
            "activation": read_activation(checkpoint.folder, checkpoint.config, len(labels)),
            "pooling": pooling,
            "template": template,
            "prompts": prompts,
            "omitted": omitted(*(PROMPTS if prompts else ()), *softmax),
        }

    @classmethod
    def pooled(cls) -> dict[str, Any]:
        """Return how to load a model whose scores are made of its hidden states."""
        return {"auto_class": "AutoModel", "headless": True}

    @classmethod
    def published(cls, labels: Sequence[str], has_prompts: bool) -> Self:
        return cls(labels=tuple(labels), omitted=frozenset(() if has_prompts else PROMPTS))

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        if checkpoint.model_type in DECODERS and self.template is None:
            return (
                "No chat template has the roles query and document: the model reads the query and then the text alone.",
            )
        return ()

    def details(self) -> dict[str, object]:
        return {
            **super().details(),
            "activation": self.activation,
            "pooling": self.pooling.names if self.pooling else None,
            "template": self.template.plain if self.template else None,
        }

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(names.SCORE, "TYPE_FP32", (max(1, len(self.labels)),)),)

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        if not self.labels:
            return logits_of_labels(config)
        return (TensorSpec(names.LOGITS, "TYPE_FP32", (len(self.labels),)),)

    @property
    def postprocess_reads(self) -> tuple[str, ...]:
        return (RAW_SCORES,)

    @property
    def why_python(self) -> tuple[str, ...]:
        return () if self.template is None else ("a template of pairs",)

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        settings = super().reader_settings(checkpoint, tokenizer, max_length)
        if self.template is not None:
            settings |= {"template": self.template.plain, "prompted_template": self.template.prompted}
        return settings

    @property
    def pools_prompt(self) -> bool:
        return self.pooling is None or self.pooling.pools_prompt

    def last_step_settings(self, config: Config) -> Settings:
        return {"labels": list(self.labels or labels_of(config)), "activation": self.activation}

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        model, _ = super().load_model(checkpoint, tokenizer)
        return model, None if self.pooling is None else make_pooler(self.pooling, checkpoint)

    def read_as(self, text: str) -> list[str]:
        """Return `text` behind each prompt, or, in a template, as query and document with each prompt."""
        if self.template is None:
            return super().read_as(text)
        plain, fields = self.template.plain, {names.QUERY: text, names.TEXT_INPUT: text}
        prompts = self.prompts.texts.values() if self.prompts else ()
        prompted = [rendered(self.template.prompted or plain, {**fields, names.PROMPT: each}) for each in prompts]
        return [rendered(plain, fields), *prompted]

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return each text with a query.

        The query is, in turn, the beginning of the text itself, which answers it, and the beginning of another text.
        """
        return [
            {names.QUERY: texts[(i + i % 2 * DISTANCE) % len(texts)][:QUERY_CHARACTERS], names.TEXT_INPUT: text}
            for i, text in enumerate(texts)
        ]

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the ids of the pair, whose longer text is truncated first, or of the text that the template makes."""
        if self.template is not None:
            return templated_ids(self.template.plain, self.template.prompted, tokenizer, request, max_length)
        # A list: otherwise, a pair with an empty text is not read as a pair.
        pairs = [(request[names.QUERY], request[names.TEXT_INPUT])]
        ids: list[list[int]] = tokenizer(pairs, truncation="longest_first", max_length=max_length)["input_ids"]
        return ids

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """The drift is the difference of the scores, as a share of the reference's score if that is beyond 1."""
        expected, found = (np.atleast_1d(np.asarray(each[names.SCORE], np.float64)) for each in (reference, answer))
        drift = float(np.max(np.abs(expected - found) / np.maximum(1.0, np.abs(expected))))
        return Comparison(drift <= SAME_SCORE, drift)

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        return spearman(self.pair_scores(answers), targets)

    def pair_scores(self, answers: Sequence[Answer]) -> list[float]:
        return [float(answer[names.SCORE]) for answer in answers]


@dataclass(frozen=True, kw_only=True)
class PairClassifier(CrossEncoder):
    """A cross-encoder that gives a pair a score for each of several labels.

    Its metric counts how often the label with the best score is the right one.
    """

    name: ClassVar[Kind] = Kind.PAIR_CLASSIFIER
    ranks: ClassVar[bool] = False
    metric_name: ClassVar[str] = "accuracy"
    postprocess_reads: ClassVar[tuple[str, ...]] = (RAW_SCORES, APPLY_SOFTMAX)

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        _, labels = scores_of(checkpoint)
        return len(labels) > 1

    @property
    def why_python(self) -> tuple[str, ...]:
        return *super().why_python, "scores of several labels"

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        best = (self.labels[int(np.argmax(answer[names.SCORE]))] for answer in answers)
        return fmean(label == target for label, target in zip(best, targets, strict=True))


def scores_of(checkpoint: Checkpoint) -> tuple[Pooling | None, tuple[str, ...]]:
    """Return the pooling that makes scores of hidden states (None: the transformer gives scores), and their labels."""
    pooling = read_scoring(checkpoint.folder, checkpoint.architecture.endswith(CAUSAL_MODELS))
    if pooling is None:
        return None, tuple(labels_of(checkpoint.config))
    return pooling, tuple(default_labels(pooling.width(width(checkpoint.config))))


def templated_ids(
    plain: Sequence[str], prompted: Sequence[str] | None, tokenizer: Any, request: Request, max_length: int
) -> list[list[int]]:
    """Return the ids of a pair in the template `plain`, or, with a prompt, in `prompted`.

    What the template puts behind the text is not truncated.
    """
    fields = {names.PROMPT: "", **request}
    parts = prompted if prompted and fields[names.PROMPT] else plain
    ids, *ends = (
        tokenizer(rendered(parts, {**fields, **other}), add_special_tokens=False, verbose=False)["input_ids"]
        for other in ({}, *({names.QUERY: text, names.TEXT_INPUT: text} for text in FILLERS))
    )
    return [ids if len(ids) <= max_length else cut(ids, tail(*ends), max_length)]
