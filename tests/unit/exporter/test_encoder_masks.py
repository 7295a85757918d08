"""Simplified masks leave a traced graph's answers bit equal; masks with more information are left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest

from hfx import names
from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS
from hfx.exporter.encoder.checkpoint.pooling import Pooling, make_pooler
from hfx.exporter.encoder.graph.build import build_graph, clean
from hfx.exporter.encoder.graph.masks import LONGEST, SHORT, simplify_masks
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.quantize.encoder import row_wise
from tests.rigs.checkpoints import tiny_encoders
from tests.rigs.files import onnx_toys
from tests.rigs.machine.processors import LEVELS
from tests.rigs.machine.tiers import full

EMBEDDINGS = usual_kind("feature-extraction")
LONG = 40
# Architectures whose masks differ by query or are no addends.
OTHERS = {"deberta", "deberta-v2", "flaubert", "xlm", *(DECODERS - {"openai-gpt"})}
KINDS = ("bart", "bert", "deberta", "modernbert", "mobilebert", "mpnet", "nomic_bert")


def traced(model_type: str, **config: int) -> onnx.ModelProto:
    model = tiny_encoders.build(model_type, EMBEDDINGS.auto_class, **config)
    return build_graph(model, EMBEDDINGS, 1, make_pooler(Pooling()))


def simplified(graph: onnx.ModelProto, longest: int = LONG) -> onnx.ModelProto:
    changed = copy.deepcopy(graph)
    simplify_masks(changed, longest)
    return clean(changed)


def opened(graph: onnx.ModelProto) -> Callable[[list[int], bool], list[object]]:
    """Return a function that answers a batch of rows of the given widths, with some masked tokens or without."""
    return partial(answers, onnx_toys.session(graph), {value.name for value in graph.graph.input})


def answers(run: Callable[..., Any], inputs: set[str], widths: list[int], masked: bool) -> list[object]:
    chance = np.random.default_rng(sum(widths))
    tokens = sum(widths)
    feed = {
        names.INPUT_IDS: chance.integers(5, 30, tokens).astype(np.int32),
        names.ATTENTION_MASK: chance.integers(0, 2, tokens).astype(np.int32) if masked else np.ones(tokens, np.int32),
        names.TOKEN_TYPE_IDS: np.zeros(tokens, np.int32),
        names.ITEM_SHAPE: np.array([[width] for width in widths], np.int32),
    }
    return [each.tobytes() for each in run(**{name: value for name, value in feed.items() if name in inputs})]


@pytest.mark.parametrize(
    ("model_type", "heads"),
    [
        (kind, heads) if kind in KINDS and (heads == 4 or kind == "bert") else full(kind, heads)
        for kind in sorted(ENCODERS | DECODERS)
        for heads in (1, 4)
    ],
)
def test_simplified_masks_leave_answers_bit_equal(model_type: str, heads: int) -> None:
    """With one head, scores have the shape of a mask, and without weights also its values."""
    graph = traced(model_type, **tiny_encoders.of_heads(model_type, heads))
    changed = simplified(graph)
    int8 = [row_wise(each, LEVELS) for each in (graph, changed)]
    assert int8[0].skips_padding == int8[1].skips_padding
    pairs = [(opened(graph), opened(changed)), (opened(int8[0].model), opened(int8[1].model))]
    for widths in ([1], [7, 3, 12], [LONG, 2]):
        for masked in (False, True):
            assert all(one(widths, masked) == other(widths, masked) for one, other in pairs)
    fewer = len(graph.graph.node) - len(changed.graph.node)
    assert (fewer == 0) if model_type in OTHERS else (fewer > 0)


def test_a_window_mask_stays_if_texts_can_exceed_the_window() -> None:
    """ModernBERT's global layers get the simple mask; layers with a window of 17 tokens keep theirs."""
    graph = traced("modernbert", local_attention=32)
    whole, windowed, all_alike = map(opened, (graph, simplified(graph), simplified(graph, SHORT)))
    assert windowed([LONG], False) == whole([LONG], False) != all_alike([LONG], False)


def test_masks_of_models_for_longer_texts_are_left_alone() -> None:
    graph = traced("bert")
    assert simplified(graph, LONGEST + 1) == clean(copy.deepcopy(graph))
