"""Sentence embeddings. Pooling and normalization are part of the net's graph: an embedding needs no last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hfx import names
from hfx.client.results import max_sim
from hfx.errors import CheckpointCorrupt
from hfx.exporter.ranking import spearman
from hfx.exporter.tasks.task import Answer, Comparison, Config, EncoderTask
from hfx.exporter.tasks.text_classification import expected_ids
from hfx.exporter.tasks.token_classification import samples
from hfx.repository.config_pbtxt import TensorSpec

SAME_DIRECTION = 0.995  # cosine: below it, the nearest neighbours in an index of sentences begin to change places


def width(config: Config) -> int:
    """Length of a token's embedding."""
    for field in ("hidden_size", "dim", "d_model", "emb_dim"):
        if isinstance(config.get(field), int):
            return int(config[field])
    raise CheckpointCorrupt("config.json has no hidden_size (nor dim, d_model, emb_dim).", "Save the model again.")


def embedding(numbers: int) -> tuple[TensorSpec, ...]:
    """One embedding a text, of so many numbers."""
    return (TensorSpec(names.EMBEDDING, "TYPE_FP32", (numbers,)),)


def of_tokens(task: EncoderTask, numbers: int = -1) -> EncoderTask:
    """`task` with a vector of so many numbers (-1: any) for each token; the last step leaves padding out."""
    vectors = TensorSpec(names.EMBEDDING, "TYPE_FP32", (-1, numbers))
    return replace(
        task,
        outputs=(vectors, TensorSpec(names.INPUT_TOKENS, "TYPE_INT32", (1,))),
        net_outputs=lambda config: (vectors,),
        postprocess_settings=lambda config: {"tokens": True},
        postprocess_reads=(names.ATTENTION_MASK,),
        compare=compare_tokens,
        pair_scores=lambda answers: _in_turn(answers, max_sim),
        metric=lambda answers, targets: spearman(_in_turn(answers, max_sim), targets),
    )


def compare_tokens(reference: Answer, answer: Answer) -> Comparison:
    """The token whose vector's direction differs most decides, and drifts."""
    pairs = [*zip(reference[names.EMBEDDING], answer[names.EMBEDDING], strict=True)]
    similarity = min((cosine(a, b) for a, b in pairs), default=1.0)
    return Comparison(similarity >= SAME_DIRECTION, max(0.0, 1.0 - similarity))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Cosine similarity; 1 for two zero vectors, which point the same way as far as a user can tell."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y / norm) if norm else float(np.array_equal(x, y))


def compare(reference: Answer, answer: Answer) -> Comparison:
    """Same direction; drift is 1 - cosine."""
    similarity = cosine(reference[names.EMBEDDING], answer[names.EMBEDDING])
    return Comparison(similarity >= SAME_DIRECTION, max(0.0, 1.0 - similarity))


def _in_turn(answers: Sequence[Answer], similarity: Callable[[Any, Any], float]) -> list[float]:
    """The similarities of pairs, whose two texts come in turn."""
    vectors = [answer[names.EMBEDDING] for answer in answers]
    return [similarity(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]


TASK = EncoderTask(
    task=names.Task.FEATURE_EXTRACTION,
    auto_class="AutoModel",
    architectures=("Model",),
    item_rank=1,
    outputs=(TensorSpec(names.EMBEDDING, "TYPE_FP32", (-1,)),),
    net_outputs=lambda config: embedding(width(config)),
    samples=samples,
    expected_ids=expected_ids,
    compare=compare,
    metric=lambda answers, targets: spearman(_in_turn(answers, cosine), targets),
    pair_scores=lambda answers: _in_turn(answers, cosine),
    metric_name="spearman",
    headless=True,
    by_library=True,
)
