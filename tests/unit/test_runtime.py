"""The choice of a CPU runtime: what a processor can multiply, and how candidates are timed."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import export
from hfx.exporter.plan import make_plan
from hfx.exporter.runtime import CpuChoice, interleave, weight_levels
from hfx.exporter.source import open_checkpoint
from tests import tiny_checkpoints


@pytest.mark.parametrize(
    ("line", "levels"),
    [
        ("flags\t\t: fpu avx2 avx512_vnni", 127),
        ("flags\t\t: fpu avx2 avx_vnni", 127),
        ("flags\t\t: fpu avx2 avx512f", 63),
        ("Features\t: fp asimd", 127),
    ],
    ids=["server", "client", "without VNNI", "Arm"],
)
def test_weights_have_seven_bits_where_products_would_saturate(line: str, levels: int, tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{line}\n")
    assert weight_levels(cpuinfo) == levels


def test_every_way_is_run_in_turn() -> None:
    order: list[str] = []
    seconds = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")})
    assert order[:4] == ["a", "b", "a", "b"]
    assert order.count("a") == order.count("b")
    assert all(value >= 0 for value in seconds.values())


@pytest.mark.parametrize(("head", "positions"), [("ForSequenceClassification", 16), ("ForQuestionAnswering", 64)])
def test_a_model_of_few_positions_is_timed_within_them(tmp_path: Path, head: str, positions: int) -> None:
    model = tiny_checkpoints.bert(head, max_position_embeddings=positions)
    checkpoint = open_checkpoint(str(tiny_checkpoints.save(tmp_path / "tiny", model)))
    options = ExportOptions(repository=tmp_path / "repository", device="cpu", cpu_runtime="onnxruntime")
    manifest = export(make_plan(checkpoint, options), lambda title: nullcontext())
    choice: Any = manifest.choices["cpu_runtime"]
    assert list(choice["milliseconds"]["onnxruntime"]) == ["1x16", f"8x{positions}"]


def test_openvino_is_asked_for_by_the_standard_entry() -> None:
    config = CpuChoice("openvino", quantization_group=64).backend_config(threads=3)
    accelerators = config["optimization"]["execution_accelerators"]["cpu_execution_accelerator"]
    assert [each["name"] for each in accelerators] == ["openvino"]
    assert config["parameters"]["openvino.DYNAMIC_QUANTIZATION_GROUP_SIZE"] == {"string_value": "64"}
    assert config["parameters"]["intra_op_thread_count"] == {"string_value": "3"}
