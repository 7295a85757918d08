"""The graphs for GPUs: all can be captured as CUDA graphs, with the right values, and what prevents it is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.graph.placement import obstacles
from hfx.exporter.quantize.generator import FORMATS
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import graph_rows

LENGTHS, STEPS = (5, 31, 1, 12), 6  # of prompts and sources, in one ragged batch; of answers
TOLERANCE = 2e-2  # of the largest logit, as on a GPU (tests/gpu/test_generators_on_cuda.py)


def in_torch(model: Any, **ids: list[int]) -> NDArray[Any]:
    """Return transformers' logits [tokens, vocabulary] of one row."""
    import torch

    with torch.no_grad():
        logits: NDArray[Any] = model(**{name: torch.tensor([row]) for name, row in ids.items()}).logits[0].numpy()
    return logits


@pytest.mark.parametrize("name", tiny_generators.GENERATORS)
def test_steps_of_every_family_can_be_captured_and_have_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    """The float16 files run on the CPU here (test_engine_device.py: with the totals of captured steps)."""
    model, folder = tiny_generators.build(name), tmp_path / "engine"
    write_engine_folder(tiny_generators.save(tmp_path, model), folder, FORMATS["fp16"], 127)
    found = {path.name: obstacles(onnx.load(path, load_external_data=False)) for path in folder.glob("*.onnx")}
    assert found and not any(found.values()), found
    inputs, answers = graph_rows.random_rows(LENGTHS), graph_rows.random_rows([STEPS] * len(LENGTHS), seed=1)
    for got, tokens, answer in zip(graph_rows.decoded(folder, inputs, answers), inputs, answers, strict=True):
        if name in tiny_generators.DECODERS:
            want = in_torch(model, input_ids=[*tokens, *answer])[len(tokens) - 1 : -1]
        else:
            want = in_torch(model, input_ids=tokens, decoder_input_ids=answer)
        assert np.abs(got - want).max() <= TOLERANCE * np.abs(want).max()


def found(text: str) -> list[str]:
    """Return the obstacles of a graph, given as text."""
    header = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>\n'
    return obstacles(onnx.parser.parse_model(header + text))


def test_sizes_that_are_computed_on_the_cpu_are_no_obstacle() -> None:
    assert not found(
        """g (float16[n, k] x) => (float16[n, k] y) {
        rest = Constant <value = int64[1] {-1}> ()
        shape = Shape (x)
        rows = Gather (shape, zero)
        flat = Reshape (x, rest)
        y = Reshape (flat, shape)
        places = Range (start, rows, step)
    }""".replace("{\n", "\n<int64[1] zero = {0}, int64 start = {0}, int64 step = {1}> {\n", 1)
    )


BROKEN = {
    "a range that is computed on the CPU and added on the GPU": (
        """g (int32[n] x, int32[] total) => (int32[n] y) <int32 start = {0}, int32 step = {1}> {
            doubled = Add (total, total)
            places = Range (start, doubled, step)
            y = Add (x, places)
        }""",
        ["doubled is computed by Add doubled on the GPU, and read by Range places in host memory.",
         "The input total, a scalar in host memory, is read by Add doubled on the GPU."],
    ),
    "a size that is added on the GPU": (
        """g (float16[n] x, int64[n] z) => (int64[n] y) {
            shape = Shape (x)
            a = Neg (z)
            y = Add (a, shape)
        }""",
        ["shape is computed by Shape shape in host memory, and read by Add y on the GPU."],
    ),
    "an input of both memories": (
        """g (float16[n, k] x, int64[m] shape) => (float16[n, k] y, int64[m] z) {
            y = Reshape (x, shape)
            z = Neg (shape)
        }""",
        ["The input shape is read by Reshape y in host memory and by Neg z on the GPU."],
    ),
    "an operator for the CPU alone": (
        """g (float16[n] x) => (float16[n] y) {
            a = Add (x, x)
            b = Det (a)
            y = Add (x, b)
        }""",
        ["Det b has no CUDA kernel that hfx knows for float16 and opset 21.",
         "a is computed by Add a on the GPU, and read by Det b in host memory.",
         "b is computed by Det b in host memory, and read by Add y on the GPU."],
    ),
    "a type without a kernel": (
        """g (int32[n] x) => (int32[n] y) <int32 low = {0}, int32 high = {9}> {
            y = Clip (x, low, high)
        }""",
        ["Clip y has no CUDA kernel that hfx knows for int32 and opset 21.",
         "The output y is computed by Clip y in host memory."],
    ),
    "an operator that ONNX Runtime lacks": (
        """g (float16[n] x) => (float16[n] y) {
            y = com.microsoft.Unheard (x)
        }""",
        ["Unheard y has no CUDA kernel that hfx knows for float16 and opset 21."],
    ),
    "a branch": (
        """g (float16[n] x, bool[] c) => (float16[n] y) {
            y = If (c) <then_branch = a () => (float16[n] p) { p = Add (x, x) },
                        else_branch = b () => (float16[n] q) { q = Mul (x, x) }>
        }""",
        ["If y has a subgraph."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN)
def test_what_prevents_a_capture_is_named(broken: str) -> None:
    text, words = BROKEN[broken]
    reported = found(text)
    assert [each for each in words if each not in reported] == [], reported
