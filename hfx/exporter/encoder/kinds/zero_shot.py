"""Zero-shot classification: for each candidate label, an NLI model says whether the text entails it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.kinds.classifier import Classifier
from hfx.exporter.encoder.kinds.kind import Config, Request, Settings, labels_of, names_labels
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.repository.config_pbtxt import TensorSpec

HYPOTHESIS_TEMPLATE = "This example is {}."  # transformers' own
SAMPLE_LABELS = ("good news", "sports", "a question", "politics", "food")


@dataclass(frozen=True, kw_only=True)
class ZeroShot(Classifier):
    """A zero-shot classifier, which orders the labels of a request, best first.

    Answers have the form of a text classifier's, and compare like them.
    """

    name: ClassVar[Kind] = Kind.ZERO_SHOT
    task: ClassVar[Task] = Task.ZERO_SHOT_CLASSIFICATION
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = ()
    own_options: ClassVar[frozenset[str]] = frozenset()
    plain_name: ClassVar[str] = ""
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.CANDIDATE_LABELS, names.TOP_K, names.MULTI_LABEL)

    def notes(self, checkpoint: Checkpoint, options: ExportOptions) -> tuple[str, ...]:
        return ()

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        return {"hypothesis_template": HYPOTHESIS_TEMPLATE}

    def last_step_settings(self, config: Config) -> Settings:
        """Return the indices of the entailment and contradiction logits.

        There is no default for `top_k`: an answer ranks all candidate labels.
        """
        entailment = entailment_index(config)
        contradiction = len(labels_of(config)) - 1 if entailment == 0 else 0
        return {"entailment": entailment, "contradiction": contradiction}

    def samples(self, texts: Sequence[str]) -> list[Request]:
        """Return each text with two to five labels, so that rows with different counts share a batch."""
        return [
            {names.TEXT_INPUT: text, names.CANDIDATE_LABELS: list(SAMPLE_LABELS[: 2 + i % 4])}
            for i, text in enumerate(texts)
            if text.strip()  # as in the pipeline: an empty text has no premise
        ]

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the ids of a pair of text and hypothesis for each label; only the text is truncated."""
        pairs = [HYPOTHESIS_TEMPLATE.format(label) for label in request[names.CANDIDATE_LABELS]]
        texts = [request[names.TEXT_INPUT]] * len(pairs)
        ids: list[list[int]] = tokenizer(texts, pairs, truncation="only_first", max_length=max_length)["input_ids"]
        return ids


def entailment_index(config: Config) -> int:
    """Return the index of the first label that begins with "entail", as transformers' pipeline finds it in label2id.

    If the config does not name its labels, transformers makes a label2id of its own.
    Raises CheckpointUnsupported if there is no such label, or its number is out of range.
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
