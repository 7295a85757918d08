"""What an engine folder holds: engine.json, the graphs' inputs and outputs, and how much memory its making takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from hfx.errors import CheckpointUnsupported
from hfx.exporter.families import find_family
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.source import open_checkpoint
from tests.unit import tiny_generators
from tests.unit.shared_data import DATA, needs_data

CONTRIB = "com.microsoft"
Signature = dict[str, tuple[int, list[int | str]]]


def signature(values: object) -> Signature:
    """Name -> (element type, dimensions)."""
    return {
        v.name: (
            v.type.tensor_type.elem_type,
            [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim],
        )
        for v in values  # type: ignore[attr-defined]
    }


def written(folder: Path, name: str, precision: str = "fp32", levels: int = 127, openvino: bool = False) -> Path:
    checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
    write_engine_folder(checkpoint, folder / "engine", FORMATS[precision], levels, openvino)
    return folder / "engine"


def test_engine_json_of_a_decoder(tmp_path: Path) -> None:
    assert json.loads((written(tmp_path, "gpt2", "int8") / "engine.json").read_text()) == {
        "format": 1,
        "family": "gpt2",
        "kind": "decoder",
        "precision": "int8",
        "vocab_size": 120,
        "layers": 2,
        "heads": 3,
        "head_dim": 16,
        "max_length": 80,
        "max_source": None,
        "beams": None,
        "kv_type": "float32",
        "cross_type": None,
        "minimum_onnxruntime": "1.31",
        "needs_vnni": True,
        "files": {
            "encoder": None,
            "decoder": {"1": "decoder.onnx"},
            "log_softmax": "log_softmax.onnx",
            "top_k": "top_k.onnx",
        },
        "runtime": "onnxruntime",
        "openvino": None,
    }


@pytest.mark.parametrize(
    ("name", "precision", "wanted"),
    [
        ("gpt2", "fp32", {"encoder": None, "kv_type": "f32", "group": 0}),
        ("gpt2", "int8", {"encoder": None, "kv_type": "u8", "group": 128}),
        ("gpt2", "int4", {"encoder": None, "kv_type": "u8", "group": 32}),
        ("bart", "int8", {"encoder": "openvino_encoder.xml", "kv_type": "f16", "group": 128}),
    ],
)
def test_engine_json_of_openvino(tmp_path: Path, name: str, precision: str, wanted: dict[str, object]) -> None:
    facts = json.loads((written(tmp_path, name, precision, openvino=True) / "engine.json").read_text())
    assert facts["runtime"] == "openvino"
    assert facts["openvino"] == {"minimum": "2026.4", "decoder": "openvino_decoder.xml", **wanted}


def test_engine_json_of_an_encoder_decoder(tmp_path: Path) -> None:
    facts = json.loads((written(tmp_path, "bart", "fp16") / "engine.json").read_text())
    beams = [1, 2, 3, 4, 5, 6, 8]
    assert facts["kind"] == "encoder-decoder" and facts["kv_type"] == "float16" and not facts["needs_vnni"]
    assert (facts["heads"], facts["head_dim"], facts["layers"]) == (3, 16, 2)
    assert facts["max_source"] == facts["max_length"] == 80
    assert facts["beams"] == beams
    assert facts["files"]["decoder"] == {str(b): f"decoder.{b}.onnx" for b in beams}
    assert all((tmp_path / "engine" / name).is_file() for name in facts["files"]["decoder"].values())


def test_only_full_int8_weights_need_vnni(tmp_path: Path) -> None:
    needs = {
        levels: json.loads((written(tmp_path / str(levels), "t5", "int8", levels) / "engine.json").read_text())
        for levels in (127, 63)
    }
    assert needs[127]["needs_vnni"] and not needs[63]["needs_vnni"]


def test_inputs_and_outputs_of_a_decoder(tmp_path: Path) -> None:
    graph = onnx.load(written(tmp_path, "gpt2") / "decoder.onnx", load_external_data=False).graph
    cache = (TensorProto.FLOAT, ["rows", 3, "capacity", 16])
    assert signature(graph.input) == {
        "input_ids": (TensorProto.INT64, ["rows", "sequence"]),
        "position_ids": (TensorProto.INT64, ["rows", "sequence"]),
        "seqlens_k": (TensorProto.INT32, ["rows"]),
        "total_length": (TensorProto.INT32, []),
        "last_index": (TensorProto.INT64, ["rows", 1]),
        **{f"past_{part}_{i}": cache for part in "kv" for i in range(2)},
    }
    assert signature(graph.output) == {
        "next_ids": (TensorProto.INT64, ["rows", 1]),
        "logits": (TensorProto.FLOAT, ["rows", 120]),
        **{f"present_{part}_{i}": cache for part in "kv" for i in range(2)},
    }


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_inputs_and_outputs_of_an_encoder_decoder(tmp_path: Path, precision: str) -> None:
    folder = written(tmp_path, "bart", precision)
    kv = TensorProto.FLOAT16 if precision == "fp16" else TensorProto.FLOAT
    encoder = onnx.load(folder / "encoder.onnx", load_external_data=False).graph
    assert signature(encoder.input) == {
        "input_ids": (TensorProto.INT64, ["requests", "source"]),
        "seqlens_k": (TensorProto.INT32, ["requests"]),
        "total_length": (TensorProto.INT32, []),
    }
    memory = (TensorProto.FLOAT, ["requests", "source", 2 * 48])
    assert signature(encoder.output) == {f"cross_{i}": memory for i in range(2)}
    decoder = onnx.load(folder / "decoder.4.onnx", load_external_data=False).graph
    own, cross = (kv, ["rows", 3, "capacity", 16]), (kv, ["requests", 3, "source_capacity", 16])
    assert signature(decoder.input) == {
        "input_ids": (TensorProto.INT64, ["rows", 1]),
        "position_ids": (TensorProto.INT64, ["rows", 1]),
        "seqlens_k": (TensorProto.INT32, ["rows"]),
        "total_length": (TensorProto.INT32, []),
        "source_seqlens_k": (TensorProto.INT32, ["requests"]),
        "source_total_length": (TensorProto.INT32, []),
        **{f"past_{part}_{i}": own for part in "kv" for i in range(2)},
        **{f"cross_{part}_{i}": cross for part in "kv" for i in range(2)},
        **{f"cross_{part}_last_{i}": (TensorProto.FLOAT, ["requests", 1, 48]) for part in "kv" for i in range(2)},
    }
    assert signature(decoder.output) == {
        "next_ids": (TensorProto.INT64, ["rows", 1]),
        "logits": (TensorProto.FLOAT, ["rows", 120]),
        **{f"present_{part}_{i}": own for part in "kv" for i in range(2)},
        **{f"cross_present_{part}_{i}": cross for part in "kv" for i in range(2)},
    }


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


@pytest.mark.parametrize("model_type", ["bert", "umt5", "llama"])
def test_other_models_are_refused_by_name(tmp_path: Path, model_type: str) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("gpt2"))
    checkpoint.config["model_type"] = model_type
    with pytest.raises(CheckpointUnsupported, match=model_type) as caught:
        find_family(checkpoint)
    assert "bart, gpt2, m2m_100, marian, mbart, mt5, pegasus, t5" in caught.value.fix


@pytest.mark.parametrize("architecture", ["GPT2ForSequenceClassification", "GPT2DoubleHeadsModel"])
def test_a_checkpoint_that_generates_nothing_is_refused(tmp_path: Path, architecture: str) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("gpt2"))
    checkpoint.config["architectures"] = [architecture]
    with pytest.raises(CheckpointUnsupported, match=architecture):
        find_family(checkpoint)


@needs_data
@pytest.mark.parametrize("name", ["g2p-bart-us", "g2p-t5-us"])
@pytest.mark.parametrize("precision", FORMATS)
def test_real_checkpoints_can_be_built(tmp_path: Path, name: str, precision: str) -> None:
    folder = DATA / "models" / name
    facts = write_engine_folder(open_checkpoint(str(folder)), tmp_path, FORMATS[precision], 127)
    assert facts.kind == "encoder-decoder" and facts.precision == precision


MEASURE = """
import sys, threading, time
from pathlib import Path
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from tests.unit import tiny_generators

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])

folder = Path(sys.argv[1])
tiny = tiny_generators.checkpoint(folder / "tiny")
write_engine_folder(tiny, folder / "warm", FORMATS["int8"], 127)  # imports what there is to import
checkpoint, before, peak, done = tiny_generators.checkpoint(folder / "large"), anonymous(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, anonymous())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
for precision in FORMATS:
    write_engine_folder(checkpoint, folder / precision, FORMATS[precision], 127)
done = True
watcher.join()
print(peak - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="reads Linux's /proc")
def test_a_build_takes_memory_for_the_largest_tensors_and_not_for_the_checkpoint(tmp_path: Path) -> None:
    tiny_generators.save(tmp_path / "tiny", tiny_generators.build("gpt2"))
    large = tiny_generators.build("gpt2", n_embd=512, n_head=8, n_layer=8, vocab_size=20_000)
    tiny_generators.save(tmp_path / "large", large)
    checkpoint_kb = (tmp_path / "large" / "model.safetensors").stat().st_size >> 10
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True)
    # 137 MB of weights, 40 MB of them in one table, of which a quarter (int8) and 16 MB pieces are held at a time.
    assert checkpoint_kb > 130_000
    assert int(done.stdout) < 70_000
