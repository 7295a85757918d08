"""What precedes and follows the transformer of an embedder, compared with sentence-transformers without an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hfx.exporter.encoder.checkpoint.pooling import make_pooler
from hfx.exporter.encoder.checkpoint.sentence_transformers import read_pooling
from hfx.exporter.encoder.graph.pooled_graph import append_pooling
from hfx.exporter.encoder.plan import make_encoder_plan
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import open_checkpoint
from hfx.names import TEXT_INPUT
from tests.rigs.checkpoints.sentence_models import HIDDEN, TEXTS
from tests.rigs.files import onnx_toys

LENGTHS = (9, 3, 4, 8)  # of rows of token vectors


def check_ids(folder: Path, reference: Any) -> None:
    """Check that the ids that the gate of an export expects are those of `reference`, with each of its prompts."""
    plan = make_encoder_plan(open_checkpoint(str(folder)), ExportOptions())
    tokenizer = plan.kind.load_tokenizer(plan.checkpoint)
    positions = getattr(reference[0].config, "max_position_embeddings", reference.max_seq_length)
    reference.max_seq_length = min(reference.max_seq_length, positions)
    for prompt in ("", *reference.prompts.values()):
        for text in TEXTS:
            [found] = plan.kind.expected_ids(tokenizer, {TEXT_INPUT: prompt + text}, plan.max_length)
            assert found == reference.preprocess([prompt + text])["input_ids"][0].tolist()


def check_pooling(folder: Path, reference: Any, prompt: int = 0, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Check that random vectors of tokens are pooled as by `reference`, each row with the same bits alone.

    The first `prompt` tokens of each row are a prompt's.
    """
    draw, count = np.random.default_rng(0), max(lengths)
    states = draw.normal(scale=2, size=(len(lengths), count, HIDDEN)).astype(np.float32)
    mask = (np.arange(count) < np.array(lengths)[:, None]).astype(np.int64)
    expected = _by_library(reference, states, mask, prompt)
    if prompt and not read_pooling(folder).pools_prompt:
        mask[:, :prompt] = 2
    run = _as_served(folder)
    (found,) = run(states=states, mask=mask)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)
    for row, length in enumerate(lengths):
        (alone,) = run(states=states[row : row + 1, :length], mask=mask[row : row + 1, :length])
        np.testing.assert_array_equal(alone[0], found[row])


def _as_served(folder: Path) -> Any:
    """Return a session of the end of the net's graph for the checkpoint in `folder`."""
    pooler = make_pooler(read_pooling(folder), open_checkpoint(str(folder)))
    graph = onnx_toys.graph(
        [onnx_toys.helper.make_node("Identity", ["states"], ["hidden"])],
        [onnx_toys.floats("states", "rows", "tokens", HIDDEN), onnx_toys.integers("mask", "rows", "tokens")],
        [onnx_toys.floats("hidden", "rows", "tokens", HIDDEN)],
    )
    append_pooling(graph, pooler, "hidden", "mask", "embedding")
    return onnx_toys.session(graph)


def _by_library(reference: Any, states: Any, mask: Any, prompt: int) -> Any:
    import torch

    features: dict[str, Any] = {"token_embeddings": torch.from_numpy(states)}
    features["attention_mask"] = torch.from_numpy(mask.copy())  # which the library changes
    if prompt:
        features["prompt_length"] = prompt
    with torch.no_grad():
        for module in [*reference.eval()][1:]:
            features = module(features)
    return features["sentence_embedding"].numpy()[:, : reference.truncate_dim]
