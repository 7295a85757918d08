"""A text written from another: cross-entropy, exact match of what the checkpoint's own generation settings find.

The settings and the prefix that tells T5 its task are saved with the model, as published checkpoints carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.zoo.objectives import generation
from tests.zoo.objectives.objective import Feature, Objective, batches, inputs

_NO_LOSS = -100
Text = Callable[[Any], str]


def objective(
    source: Text, target: Text, settings: dict[str, Any], prefixes: Mapping[str, str] | None = None
) -> Objective:
    """`source(example)` is read, `target(example)` written; `settings` are GenerationConfig's keywords.

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
        config = generation.config(model, settings)
        right = 0
        for batch in batches(encode(tokenizer, examples)):
            found = model.generate(**inputs(model, batch), generation_config=config)
            texts = (
                tokenizer.batch_decode(ids, skip_special_tokens=True) for ids in (found, [f["labels"] for f in batch])
            )
            right += sum(text == true for text, true in zip(*texts, strict=True))
        return right / len(examples)

    def extra_files(folder: Path, model: Any, tokenizer: Any) -> None:
        generation.save(folder, model, settings)
        if prefixes:
            model.config.task_specific_params = {task: {"prefix": text} for task, text in prefixes.items()}
            model.config.save_pretrained(folder)

    return Objective(
        head="ForConditionalGeneration", metric="exact_match", texts=lambda e: [prefix + source(e), target(e)],
        encode=encode, loss=_loss, evaluate=evaluate, extra_files=extra_files,
    )  # fmt: skip


def _loss(model: Any, features: list[Feature], smoothing: float) -> Any:
    """The model shifts the labels [n, longest] itself, to what its decoder is fed with."""
    import torch

    longest = max(len(f["labels"]) for f in features)
    labels = torch.tensor([f["labels"] + [_NO_LOSS] * (longest - len(f["labels"])) for f in features])
    logits = model(**inputs(model, features), labels=labels).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=_NO_LOSS, label_smoothing=smoothing
    )
