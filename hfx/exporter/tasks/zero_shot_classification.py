"""Zero-shot classification: for each candidate label, an NLI model says whether the text entails it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.tasks.task import Config, EncoderTask, Request, Settings, labels_of, logits_of_labels, names_labels
from hfx.exporter.tasks.text_classification import accuracy, compare
from hfx.repository.config_pbtxt import TensorSpec

HYPOTHESIS_TEMPLATE = "This example is {}."  # transformers' own
SAMPLE_LABELS = ("good news", "sports", "a question", "politics", "food")


def entailment_index(config: Config) -> int:
    """Index of the first label that begins with "entail", as transformers' pipeline finds it: in label2id.

    Where it names no labels, transformers makes a label2id of its own.
    """
    labels = labels_of(config)
    numbers = (names_labels(config) and config.get("label2id")) or {label: at for at, label in enumerate(labels)}
    index = next((number for label, number in numbers.items() if label.lower().startswith("entail")), None)
    if index is None or not 0 <= index < len(labels):
        raise CheckpointUnsupported(
            "Zero-shot classification needs a model with an 'entailment' label (NLI) and its number; this one has "
            f"{', '.join(labels)} (id2label) and {', '.join(numbers)} (label2id).",
            "Pass --task text-classification, or an NLI checkpoint.",
        )
    return int(index)


def postprocess_settings(config: Config) -> Settings:
    """Where the entailment and contradiction logits stand; an answer ranks all candidate labels by default."""
    entailment = entailment_index(config)
    contradiction = len(labels_of(config)) - 1 if entailment == 0 else 0
    return {"entailment": entailment, "contradiction": contradiction}


def samples(texts: Sequence[str]) -> list[Request]:
    """Each text with two to five labels, so that rows of different counts meet in a batch."""
    return [
        {names.TEXT_INPUT: text, names.CANDIDATE_LABELS: list(SAMPLE_LABELS[: 2 + i % 4])}
        for i, text in enumerate(texts)
        if text.strip()  # as the pipeline: there is no premise in an empty text
    ]


def expected_ids(tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
    """A pair of text and hypothesis for each label; only the text is truncated."""
    hypotheses = [HYPOTHESIS_TEMPLATE.format(label) for label in request[names.CANDIDATE_LABELS]]
    texts = [request[names.TEXT_INPUT]] * len(hypotheses)
    ids: list[list[int]] = tokenizer(texts, hypotheses, truncation="only_first", max_length=max_length)["input_ids"]
    return ids


TASK = EncoderTask(
    task=names.Task.ZERO_SHOT_CLASSIFICATION,
    auto_class="AutoModelForSequenceClassification",
    architectures=("ForSequenceClassification",),
    item_rank=2,
    outputs=(TensorSpec(names.LABEL, "TYPE_STRING", (-1,)), TensorSpec(names.SCORE, "TYPE_FP32", (-1,))),
    net_outputs=logits_of_labels(-1),  # of each candidate label
    postprocess_reads=(names.CANDIDATE_LABELS, names.TOP_K, names.MULTI_LABEL),
    tokenize_settings=lambda config, max_length: {"hypothesis_template": HYPOTHESIS_TEMPLATE},
    postprocess_settings=postprocess_settings,
    samples=samples,
    expected_ids=expected_ids,
    compare=compare,
    metric=accuracy,
    metric_name="accuracy",
)
