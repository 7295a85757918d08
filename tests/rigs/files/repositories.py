"""A small, healthy repository of an encoder model with real ONNX files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from hfx.manifest import Precision, hash_folder, read_manifest, write_manifest
from hfx.repository.config_pbtxt import (
    EnsembleStep,
    ModelConfig,
    TensorSpec,
    Warmup,
    WarmupInput,
    render,
)
from tests.rigs.files.manifests import manifest

CORES = 4
OnnxInput = tuple[str, int, Sequence[int | str] | None]  # name, data type, dims
TEXT = TensorSpec("text_input", "TYPE_STRING", (1,))
TOP_K = TensorSpec("top_k", "TYPE_INT32", (1,), optional=True)
SCORES = TensorSpec("score", "TYPE_FP32", (-1,))
IDS = TensorSpec("input_ids", "TYPE_INT32", (-1,))
LOGITS = TensorSpec("logits", "TYPE_FP32", (3,))

TOKENIZE = ModelConfig(
    "m_tokenize", 64, inputs=(TEXT,), outputs=(IDS,), backend="python", instance_kind="KIND_CPU", batching=True
)
POSTPROCESS = replace(TOKENIZE, name="m_postprocess", inputs=(LOGITS, TOP_K), outputs=(SCORES,))
NET = ModelConfig(
    name="m_net",
    backend="onnxruntime",
    default_model_filename="model.onnx",
    max_batch_size=64,
    inputs=(replace(IDS, ragged=True),),
    outputs=(LOGITS,),
    item_shapes={"item_shape": "input_ids"},
    instance_kind="KIND_CPU",
    batching=True,
    parameters={"intra_op_thread_count": "4"},
    warmups=(Warmup("one", {"input_ids": WarmupInput("TYPE_INT32", (16,))}),),
)
NET_GPU = replace(NET, default_model_filename="model.fp16.onnx", instance_kind="KIND_GPU", parameters={})
ENSEMBLE = ModelConfig(
    name="m",
    max_batch_size=64,
    inputs=(TEXT, TOP_K),
    outputs=(SCORES,),
    steps=(
        EnsembleStep("m_tokenize", {"text_input": "text_input"}, {"input_ids": "ids"}),
        EnsembleStep("m_net", {"input_ids": "ids"}, {"logits": "logits"}),
        EnsembleStep("m_postprocess", {"logits": "logits", "top_k": "top_k"}, {"score": "score"}),
    ),
)


def build(repository: Path) -> Path:
    """Write the repository m -> m_tokenize, m_net (for CPU and GPU), m_postprocess, and return its path."""
    for config in (ENSEMBLE, TOKENIZE, NET, POSTPROCESS):
        (repository / config.name / "1").mkdir(parents=True)
        put(repository, config)
    for variant, config in (("cpu", NET), ("gpu", NET_GPU)):
        put(repository, config, variant)
    (repository / "m/1/.keep").touch()
    for name in ("m_tokenize", "m_postprocess"):
        (repository / name / "1/model.py").write_text("class TritonPythonModel:\n    pass\n")
        (repository / name / "1/settings.json").write_text(json.dumps({"labels": ["/r/good", "a/b"]}))
    save(repository, "model.onnx")
    save(repository, "model.fp16.onnx")
    return seal(repository)


def put(repository: Path, config: ModelConfig, variant: str = "") -> None:
    """Write one configuration with a bounded queue."""
    folder = repository / config.name
    path = folder / "configs" / f"{variant}.pbtxt" if variant else folder / "config.pbtxt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(render(config, "hfx export tests --name m"))


def on_openvino(repository: Path, variant: str = "cpu") -> None:
    """Let m_net run on OpenVINO, as earlier versions exported it."""
    put(repository, NET, variant)
    path = repository / "m_net" / (f"configs/{variant}.pbtxt" if variant else "config.pbtxt")
    entry = 'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }'
    path.write_text(f"{path.read_text()}{entry}\n")


def seal(repository: Path, precision: Precision | None = None) -> Path:
    """Write the manifest that fits the current files."""
    folders = sorted(
        path.name for path in repository.iterdir() if path.name in ("m", "m_tokenize", "m_net", "m_postprocess")
    )
    files = {path: entry for folder in folders for path, entry in hash_folder(repository / folder, repository).items()}
    path = repository / "m" / "hfx.json"
    complete = read_manifest(path) if path.exists() else manifest("m", precision=Precision("fp32", "fp16"))
    complete = replace(complete, folders=tuple(folders), files=files, precision=precision or complete.precision)
    write_manifest(complete, path)
    return repository


def save(
    repository: Path,
    name: str,
    *,
    inputs: Sequence[OnnxInput] = (
        ("input_ids", TensorProto.INT32, ["tokens"]),
        ("item_shape", TensorProto.INT32, ["rows", 1]),
    ),
    operators: Sequence[tuple[str, str]] = (("", "Identity"),),
    opset: int = 17,
    ir: int = 8,
) -> None:
    """Write an ONNX file for m_net with the given inputs, operators (domain, type), opset and IR version."""
    tensors = [helper.make_tensor_value_info(n, data_type, dims) for n, data_type, dims in inputs]
    nodes = [helper.make_node(op, ["input_ids"], [f"x{n}"], domain=domain) for n, (domain, op) in enumerate(operators)]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph(nodes, "g", tensors, [output])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), repository / "m_net/1" / name)
