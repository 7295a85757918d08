"""Token classification: entities with their positions in the text, grouped as transformers' pipeline groups them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hfx import names
from hfx.errors import UsageError
from hfx.exporter.encoder.kinds.answers import stride
from hfx.exporter.encoder.kinds.kind import (
    Answer,
    Comparison,
    Config,
    EncoderKind,
    Request,
    Settings,
    labels_of,
    logits_of_labels,
)
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind, Task
from hfx.repository.config_pbtxt import TensorSpec

AGGREGATIONS = ("none", "simple", "first", "average", "max")
DEFAULT_AGGREGATION = "simple"


@dataclass(frozen=True, kw_only=True)
class Tokens(EncoderKind):
    """A token classifier, which finds entities; `aggregation` says how tokens are joined to entities."""

    name: ClassVar[Kind] = Kind.TOKENS
    task: ClassVar[Task] = Task.TOKEN_CLASSIFICATION
    architectures: ClassVar[tuple[str, ...]] = ("ForTokenClassification",)
    item_rank: ClassVar[int] = 2
    token_outputs: ClassVar[tuple[TensorSpec, ...]] = (TensorSpec(names.OFFSETS, "TYPE_INT32", (-1, -1, 2)),)
    lacks: ClassVar[frozenset[str]] = frozenset({names.THRESHOLD, names.MULTI_LABEL, names.NESTED})
    spells_tokens: ClassVar[bool] = True
    metric_name: ClassVar[str] = "f1"
    own_options: ClassVar[frozenset[str]] = frozenset({"aggregation"})
    outputs: ClassVar[tuple[TensorSpec, ...]] = (TensorSpec(names.ENTITIES, "TYPE_STRING", (1,)),)
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.TEXT_INPUT, names.INPUT_IDS, names.OFFSETS)
    why_python: ClassVar[tuple[str, ...]] = (str(task),)

    auto_class: str = "AutoModelForTokenClassification"
    aggregation: str = DEFAULT_AGGREGATION

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        if options.aggregation not in (None, *AGGREGATIONS):
            raise UsageError(
                f"There is no aggregation {options.aggregation!r}.", f"Choose one of {', '.join(AGGREGATIONS)}."
            )
        return {**super().fields(checkpoint, options), "aggregation": options.aggregation or DEFAULT_AGGREGATION}

    def details(self) -> dict[str, object]:
        return {**super().details(), "aggregation": self.aggregation}

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return logits_of_labels(config, -1, -1)

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        return {"stride": stride(max_length)}

    def last_step_settings(self, config: Config) -> Settings:
        return {"labels": labels_of(config), "aggregation": self.aggregation}

    def tokenizer_settings(self, tokenizer: Any, checkpoint: Checkpoint) -> Settings:
        return {"unk_id": tokenizer.unk_token_id}

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        """Return the windows over the text."""
        ids: list[list[int]] = tokenizer(
            request[names.TEXT_INPUT],
            truncation=True,
            max_length=max_length,
            stride=stride(max_length),
            return_overflowing_tokens=True,
        )["input_ids"]
        return ids

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Two answers are the same if they have the same spans with the same labels.

        The drift is the largest difference of scores among the entities that both answers have.
        """
        ours, theirs = _scores(answer), _scores(reference)
        drift = max((abs(ours[key] - theirs[key]) for key in ours.keys() & theirs.keys()), default=0.0)
        return Comparison(ours.keys() == theirs.keys(), drift)

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        """Return the micro F1 over (label, start, end); a target is a JSON list of {entity, start, end}."""
        hits = found = wanted = 0
        for answer, target in zip(answers, targets, strict=True):
            ours = Counter((e["entity"], e["start"], e["end"]) for e in entities(answer))
            theirs = Counter((e["entity"], e["start"], e["end"]) for e in json.loads(target))
            hits += (ours & theirs).total()
            found += ours.total()
            wanted += theirs.total()
        return 2 * hits / (found + wanted) if found + wanted else 1.0


def entities(answer: Answer) -> list[dict[str, Any]]:
    """Return the entities of an answer, which are a list in JSON."""
    value: list[dict[str, Any]] = json.loads(answer[names.ENTITIES])
    return value


def _scores(answer: Answer) -> dict[tuple[str, int, int], float]:
    return {(e["entity"], e["start"], e["end"]): float(e["score"]) for e in entities(answer)}
