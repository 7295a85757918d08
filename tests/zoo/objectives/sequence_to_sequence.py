"""A text written from another: cross-entropy, exact match of what the checkpoint's own generation settings find.

The settings and the prefix that tells T5 its task are saved with the model, as published checkpoints carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.zoo.objectives.objective import NO_LOSS, Feature, Objective, batches, inputs, padded, token_loss

Text = Callable[[Any], str]


def objective(
    source: Text, target: Text, generation: dict[str, Any], prefixes: Mapping[str, str] | None = None
) -> Objective:
    """`source(example)` is read, `target(example)` written; `generation` are GenerationConfig's keywords.

    `prefixes` names one task of the config's task_specific_params and the text that stands before every source.
    """
    prefix = "".join((prefixes or {}).values())

    def encode(tokenizer: Any, examples: Sequence[Any]) -> list[Feature]:
        read = tokenizer([prefix + source(e) for e in examples], truncation=True)
        written = tokenizer(text_target=[target(e) for e in examples], truncation=True)
        return [
            {"input_ids": ids, "attention_mask": mask, "labels": labels}
            for ids, mask, labels in zip(read["input_ids"], read["attention_mask"], written["input_ids"], strict=True)
        ]

    def evaluate(model: Any, tokenizer: Any, examples: Sequence[Any]) -> float:
        right = 0
        for batch in batches(encode(tokenizer, examples)):
            found = model.generate(**inputs(model, batch))
            texts = (
                tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (found, [f["labels"] for f in batch])
            )
            right += sum(text == true for text, true in zip(*texts, strict=True))
        return right / len(examples)

    def extra_files(folder: Path, model: Any, tokenizer: Any) -> None:
        if prefixes:
            model.config.task_specific_params = {task: {"prefix": text} for task, text in prefixes.items()}
            model.config.save_pretrained(folder)

    return Objective(
        head="ForConditionalGeneration", metric="exact_match", texts=lambda e: [prefix + source(e), target(e)],
        encode=encode, loss=_loss, evaluate=evaluate, generation=generation, extra_files=extra_files,
    )  # fmt: skip


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    """The model shifts the labels [n, longest] itself, to what its decoder is fed with."""
    labels = padded([f["labels"] for f in features], NO_LOSS)
    return token_loss(model(**inputs(model, features), labels=labels).logits, labels, smoothing)
