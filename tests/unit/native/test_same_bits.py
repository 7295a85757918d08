"""int8 and int4 answers have the same bits with all kernels, on simulated processors, and as recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path

import onnx
import onnxruntime
import pytest
from onnx import TensorProto

from hfx.exporter.encoder.checkpoint.pooling import Layer, Pooling, make_pooler
from hfx.exporter.encoder.graph.build import build_graph
from hfx.exporter.encoder.graph.linears import GraphView
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.quantize.encoder import row_source, row_wise
from hfx.exporter.quantize.products import find_products, weights_of
from hfx.native import library
from hfx.python_backends.engine.spec import read_spec
from tests.rigs.checkpoints import same_bits, tiny_encoders
from tests.rigs.machine.processors import FLAGS, HAS_NATIVE, KERNELS
from tests.rigs.machine.tiers import full, thinned
from tests.unit.native.libraries import HERE, SANITIZED, shared_library

pytestmark = pytest.mark.skipif(not HAS_NATIVE or SANITIZED, reason="native operators are not built")
FEW, COUNT, MANY = 32, 100, 1250
# Of COUNT and of MANY answers. A new order of sums, or another form of a traced graph, makes them anew.
RECORDED = {
    "labels-distilbert": (
        "da15c5c3c9e11577a64cfc3266cdcf8cb2da167255a2d36196af19cdd30c412a",
        "be5eb0c43031001fa979427a1578cde56a61a9516da2f36745c3df211089e000",
    ),
    "tokens-bert": (
        "7cf46d9de0c9a29bd7caf755474502c9ea1878e4c4a53f2ee08139c31b78ac7c",
        "402867712f853ed0d682615151252c1ac03874387194398fd41eeff34ed6b84d",
    ),
    "labels-roberta": (
        "18fc63bb46455a5117852b46754ed651dcf85150932a882509bcce583830f293",
        "7d790a1785d03ffe7fc5b5edf7757891ad1784ce99d6f3692b8a6fb49a5cb2b8",
    ),
    "embedding-mpnet": (
        "e9d1886f83c1f690e3905f7e02b5c44a593ac17424b739df372e1c3f2cf695c3",
        "c8e7b6cce00826b41f0b499d3b7f5c4c7d391e7290b1bbffc5ed45eb5b7e8957",
    ),
    "gpt2": (
        "d182c7a65ab3b8610804298e9e98f43cf05cacab83d7426ec58613c247aac9b0",
        "e239fea7e8706abcbef7834dde3c6d42d96cd7ac69610594ae365fe568b41be5",
    ),
    "gemma": (
        "301f75a61c4c95720808d0b3fad57e4ddd3218cabc5c85a926eadf5f1640e87f",
        "8266e685994fba05b9a769d03b9e93407b12a7ce17c87a76a8a8b651145741c4",
    ),
    "llama": (
        "6c754fee0d9b2a77eba2095c6f36c421af10c4396412267038a6052a5b094c34",
        "193fd69a41d104a61db00a781b874ed6401d87b8930ab6eb38c4acfbf86a240a",
    ),
    "mistral": (
        "9afe11b927294c0fd5d6dc0f6ca8bd9be751df534cb3f7d100dcbb7116d99cb6",
        "d9a07de2ee17bf6bbe8319d83fe82783b02ae6cb93b444bffd40b5feb9d354ef",
    ),
    "qwen3": (
        "8126fc6ddd2115fdf38358fe164fbc4599926e9b5d308a21cd133db7fc9fd249",
        "56dbad6ee5a239ba7e1d01b943defb693d96c3f91dd4f6c6f924002c0a1bdf77",
    ),
    "neox": (
        "7dc16b1312da33adf265c495a9342831547acf91f63d811436773318b4cc9a6e",
        "8510f75e71e1e58e62aa92bc7045d6ba1b66c32ffcac59ac0d097054fc3b2aa8",
    ),
    "opt": (
        "8114c59885564ff8dec0010b05f88228e22fcff280e87f0f40a60aa71dff53b0",
        "fedcb314a5b936567fed1e19d721ababe53b17758212a8e5bc4df1482c94a413",
    ),
    "smollm": (
        "3312279c16916785edce3080e866d9efccf4a11235ec048e592984d6dcdaf865",
        "6a2f99e98b63629255575741aafed067a14fe8a0a9544681a0370f168e7bc4b6",
    ),
    "bart": (
        "b6b5ef4a42511b2b02bd9201e701b2a8ecf15479927a04275cada040cb796034",
        "1b2c79ea8d76b05e15a0530fb306bc63e58286dbb06445b27d4b2304dd3fc045",
    ),
    "t5": (
        "0abdf9d4b3429b9e117d7a2fc1da49631bb4cc77bd2a74dbd77fe063bf7cb1cc",
        "68e6858be01c29cbab06ce97908d463974f83907f3bd0bb44966fb27fe8a5d50",
    ),
    "gpt2-int4": (
        "c8076157ed64066dded342552e8cdd057711e5c31edaecf7cf18dd22b1f2d5e0",
        "15baa464327dc2ed1fc1293bebec8256e95725d14edff30fa2197106598d0cbc",
    ),
    "llama-int4": (
        "f352db74c1338dc340cbd8b5fd453453bbf1015afeab54737449e45b842dbd34",
        "95df8979a6a77eade7f607a2d13c859dcbd2020552048628a69af03a7f8e7209",
    ),
    "bart-int4": (
        "16399b8e6c425237620407b9056aec4f5dcd8a4eb5546581c4c45f8a1e9d539d",
        "e0167121a391cbf70ce4de77b034e5a133e6a7689b00ee053020f454370756ed",
    ),
    "t5-int4": (
        "2554fc7ef962b514a0366d2427b703f11b72b6442be345e177fce72d1d9e17bf",
        "f8442d18740ae17a83b73266a51cec2a650facc7a203e3d4cfa67ed27daabdcd",
    ),
}
# What moves data, compares, or is one rounding of its operands: IEEE 754 leaves no choice.
# fmt: off
EXACT = {
    "Abs", "Add", "And", "ArgMax", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "Div", "Equal",
    "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not", "Or", "QuantizeLinear", "Range",
    "ReduceMax", "Relu", "Reshape", "Shape", "Sign", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile",
    "TopK", "Transpose", "Unsqueeze", "Where",
}
# fmt: on
SUMS = {"ReduceSum", "CumSum"}  # of integers
INTEGERS = {TensorProto.INT32, TensorProto.INT64}
TASKS = {
    "text-classification": "",
    "token-classification": "",
    "question-answering": "",
    "fill-mask": "",
    "feature-extraction": "mean",
}
ENCODERS = {"bert": {}, "mpnet": {}, "roberta": {}, "modernbert": {}, "deberta-v2": {"conv_kernel_size": 0}}
KNOWN = {(model_type, name) for model_type, name, mode, _ in same_bits.ENCODERS.values() if mode == TASKS[name]}
# A linear behind the encoder, and ModernBERT's other head, which KNOWN has.
LINEAR = ("token-classification", "question-answering")
PAIRS = [
    full(model_type, name) if name in LINEAR and model_type != "bert" else (model_type, name)
    for model_type, name in product(ENCODERS, TASKS)
    if (model_type, name) not in KNOWN
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return same_bits.write_all(tmp_path_factory.mktemp("models"), library())


@pytest.fixture(scope="module")
def own(models: Path) -> Callable[[int], dict[str, str]]:
    """A function of a count that returns this processor's digests: kind -> digest."""
    return cache(lambda count: {kind: same_bits.digest(models, kind, count) for kind in same_bits.KINDS})


def digests(models: Path, kind: str, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return kernels -> digest. A library chooses its kernels once, so each choice has a copy."""
    found = {}
    for kernels in KERNELS:
        monkeypatch.setenv("HFX_NATIVE_KERNELS", kernels)
        shutil.copytree(models / kind, folder / kernels / kind)
        found[kernels] = same_bits.digest(folder / kernels, kind, count)
    return found


@pytest.mark.parametrize("count", [COUNT, full(MANY)])
@pytest.mark.parametrize("kind", same_bits.KINDS)
def test_answers_are_equal_with_every_kernel(
    models: Path, kind: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = digests(models, kind, count, tmp_path, monkeypatch)
    assert len(set(found.values())) == 1, found
    if kind not in same_bits.EXPORTED:
        assert set(found.values()) == {RECORDED[kind][count == MANY]}


@pytest.mark.skipif("cpuid_fault" not in FLAGS, reason="this processor can't hide what it has")
@pytest.mark.parametrize("count", [FEW, full(MANY)])
@pytest.mark.parametrize("processor", ["avx512", full("avx-vnni"), "avx2"])
def test_answers_are_equal_on_a_lesser_processor(
    models: Path, own: Callable[[int], dict[str, str]], processor: str, count: int
) -> None:
    """ONNX Runtime and numpy choose other kernels there, too."""
    hiding = shared_library("hidden-features", ["-O2", "-fPIC", "-std=c++17"], [HERE / "hidden_features.cpp"], [])
    words = [sys.executable, "-m", "tests.rigs.checkpoints.same_bits", str(models), str(count)]
    environment = os.environ | {"LD_PRELOAD": str(hiding), "HFX_TEST_PROCESSOR": processor}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == own(count)


def inexact(source: str | bytes, folder: Path) -> list[str]:
    """Return the operators of an optimized graph that are neither exact nor native."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library()))
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    model = onnx.load(options.optimized_model_filepath, load_external_data=False)
    values = [*onnx.shape_inference.infer_shapes(model).graph.value_info, *model.graph.input]
    integers = {value.name for value in values if value.type.tensor_type.elem_type in INTEGERS}
    found = []
    for node in _nodes(model.graph):
        if node.op_type in SUMS and node.input[0] in integers:
            continue
        if node.domain != "hfx" and (node.domain or node.op_type not in EXACT):
            found.append(node.op_type)
    return found


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


@pytest.mark.parametrize(("model_type", "name"), PAIRS)
def test_onnxruntime_only_moves_data_of_an_encoder(model_type: str, name: str, tmp_path: Path) -> None:
    task, mode = usual_kind(name), TASKS[name]
    model = tiny_encoders.build(model_type, task.auto_class, num_attention_heads=2, **ENCODERS[model_type])
    if model is None:
        pytest.skip("transformers has no such class")
    pooling = make_pooler(Pooling((mode,), (Layer("Normalize"),))) if mode else None  # type: ignore[arg-type]
    graph = row_wise(build_graph(model, task, tiny_encoders.PAD, pooling)).model
    assert inexact(graph.SerializeToString(), tmp_path) == []


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_onnxruntime_only_moves_data_of_an_encoder_with_products_in_float32(model_type: str, tmp_path: Path) -> None:
    task = usual_kind("feature-extraction")
    model = tiny_encoders.build(model_type, task.auto_class, num_attention_heads=2)
    source = row_source(build_graph(model, task, tiny_encoders.PAD, make_pooler(Pooling())))
    kept = weights_of(source, [each.name for each in find_products(GraphView(source))][:5])
    assert inexact(row_wise(source, kept=kept).model.SerializeToString(), tmp_path) == []


@pytest.mark.parametrize("kind", thinned(same_bits.KINDS))
def test_onnxruntime_only_moves_data_of_a_model(kind: str, models: Path, tmp_path: Path) -> None:
    if kind in same_bits.ENCODERS:
        files = [models / kind / same_bits.MODEL]
    else:
        spec = read_spec(models / kind)
        assert spec.operators is not None
        own = spec.on_operators(spec.operators).files
        files = [*own.decoder.values(), own.log_softmax, own.top_k, *([own.encoder] if own.encoder else [])]
    for file in files:
        assert inexact(str(file), tmp_path) == [], file.name


def test_sums_by_onnxruntime_are_detected_in_a_float_graph(tmp_path: Path) -> None:
    model = tiny_encoders.build("bert", "AutoModelForSequenceClassification", num_attention_heads=2)
    graph = build_graph(model, usual_kind("text-classification"), tiny_encoders.PAD, None)
    assert {"LayerNormalization", "MatMul", "Gemm"} <= set(inexact(graph.SerializeToString(), tmp_path))
