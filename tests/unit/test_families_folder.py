"""What an engine folder holds: engine.json and the graphs."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from tests.unit import tiny_generators

CONTRIB = "com.microsoft"


def written(folder: Path, name: str, precision: str = "fp32", levels: int = 127, openvino: bool = False) -> Path:
    checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
    write_engine_folder(checkpoint, folder / "engine", FORMATS[precision], levels, openvino)
    return folder / "engine"


def test_only_full_int8_weights_need_vnni(tmp_path: Path) -> None:
    needs = {
        levels: json.loads((written(tmp_path / str(levels), "t5", "int8", levels) / "engine.json").read_text())
        for levels in (127, 63)
    }
    assert needs[127]["needs_vnni"] and not needs[63]["needs_vnni"]


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5-gated"])
@pytest.mark.parametrize("precision", FORMATS)
def test_graphs_use_standard_operators_and_contrib_ones_only(tmp_path: Path, name: str, precision: str) -> None:
    for path in written(tmp_path, name, precision).glob("*.onnx"):
        model = onnx.load(path, load_external_data=False)
        assert {opset.domain for opset in model.opset_import} == {"", CONTRIB}
        assert model.ir_version <= 10
        onnx.checker.check_model(str(path), full_check=False)
        standard = {node.op_type for node in model.graph.node if not node.domain}
        assert all(onnx.defs.has(op) for op in standard)


def test_decoders_of_all_beam_widths_read_one_file(tmp_path: Path) -> None:
    folder = written(tmp_path, "bart")
    places = []
    for beams in (1, 8):
        graph = onnx.load(folder / f"decoder.{beams}.onnx", load_external_data=False).graph
        places.append({t.name: [e.value for e in t.external_data] for t in graph.initializer if t.external_data})
    assert places[0] == places[1]
    assert {place[0] for place in places[0].values()} == {"weights.bin"}
