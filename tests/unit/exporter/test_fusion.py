"""The graphs for GPUs answer like the traced graph, and a CUDA graph can capture the one of rectangular batches."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from hfx.errors import VerificationFailed
from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS
from hfx.exporter.encoder.checkpoint.pooling import Pooling, TokenLayers, make_pooler
from hfx.exporter.encoder.gate import LIMITS
from hfx.exporter.encoder.graph.build import build_graph, clean, inlined
from hfx.exporter.encoder.graph.fusion import Fused, fuse, rows_graph
from hfx.exporter.encoder.graph.masks import simplify_masks
from hfx.exporter.encoder.graph.ragged import flatten_inputs
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.steps import STEPS, choose_nets
from hfx.exporter.quantize.encoder import half
from hfx.exporter.steps import Step
from hfx.local import read_config
from hfx.repository.rules.onnx_files import FUSED_ON_GPU
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.files import onnx_toys
from tests.rigs.machine.tiers import full

LENGTHS = (7, 16, 1, 24, 3)
WIDTH = max(LENGTHS)
FP16 = LIMITS["fp16"].drift
# Attention that stays as traced, because it has a window, rotations, shared keys, or other scores.
TRACED = {
    "convbert", "deberta", "deberta-v2", "esm", "esmc", "eurobert", "flaubert", "gte", "jina_embeddings_v3",
    "mobilebert", "modernbert", "mvp", "nomic_bert", "nystromformer", "roformer", "squeezebert", "ultrabert", "xlm",
    *DECODERS,
}  # fmt: skip
ENCODER_DECODERS = {"bart", "mbart", "plbart"}  # whose decoder's attentions stay as traced
# Fields with which a model divides by the number of tokens that are attended to.
DIVIDING = {
    "esm": {"token_dropout": True},
    "eurobert": {"classifier_pooling": "mean"},
    "modernbert": {"classifier_pooling": "mean"},
}
KINDS = ("albert", "bart", "bert", "distilbert", "modernbert", "mpnet", "roberta-prelayernorm")
NAMES = sorted(ENCODERS | DECODERS)
ARCHITECTURES = [kind if kind in KINDS else full(kind) for kind in NAMES]


@cache
def graphs(
    model_type: str, task: str = "feature-extraction", mode: str = "mean", divides: bool = False
) -> tuple[onnx.ModelProto, Fused]:
    """Return the traced float32 graph of a model type, and the fused graph; with the fields of DIVIDING or without."""
    kind = usual_kind(task)
    pooler = make_pooler(Pooling((mode,))) if task == "feature-extraction" else None  # type: ignore[arg-type]
    fields = tiny_encoders.of_heads(model_type, 2) | (DIVIDING.get(model_type, {}) if divides else {})
    model = tiny_encoders.build(model_type, kind.auto_class, **fields)
    graph = build_graph(model, kind, tiny_encoders.PAD, pooler)
    simplify_masks(graph, tiny_encoders.POSITIONS - 2)
    graph = clean(graph)
    return graph, fuse(graph)


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def padded(rows: int = len(LENGTHS)) -> dict[str, np.ndarray]:
    """Return the first rows of a batch of texts of different lengths, and a row of padding."""
    random = np.random.default_rng(0)
    ids = random.integers(5, tiny_encoders.VOCABULARY, (rows, WIDTH))
    mask = np.arange(WIDTH) < np.array(LENGTHS)[:rows, None]
    feed = {"input_ids": np.where(mask, ids, tiny_encoders.PAD), "attention_mask": mask, "token_type_ids": 0 * ids}
    fill = {"input_ids": tiny_encoders.PAD, "attention_mask": 0, "token_type_ids": 0}
    return {name: np.vstack([feed[name], np.full(WIDTH, fill[name])]).astype(np.int32) for name in feed}


def flat(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the same texts as one flat tensor for each input, with their lengths."""
    seen = feed["attention_mask"] > 0
    lengths = seen[:-1].sum(1, dtype=np.int32)
    shapes = np.stack([np.ones_like(lengths), lengths], axis=1)  # a row of each text has one sequence
    return {name: value[seen] for name, value in feed.items()} | {"item_shape": shapes}


def answer(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    """Return the output of a graph on the inputs that it has; of rows of one sequence, that of the sequence."""
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    rank = inputs["item_shape"][1].dim_value if "item_shape" in inputs else 0
    chosen = {name: feed[name][:, -rank:] if name == "item_shape" else feed[name] for name in inputs}
    found = onnx_toys.run(model, **chosen)[0]
    if rank == 2 and (chosen["item_shape"][:, 0] == 1).all():
        found = found[:, 0]
    assert found.dtype == np.float32
    return found


def assert_near(found: np.ndarray, wanted: np.ndarray, share: float) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=share * np.abs(wanted).max())


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_fused_graphs_answer_like_the_traced_graph(model_type: str) -> None:
    """They do flat and in rectangular batches of one text and of many, in float32 and in float16."""
    graph, fused = graphs(model_type)
    for rows in (len(LENGTHS), 1):
        feed = padded(rows)
        wanted = answer(inlined(graph), flat(feed))
        for model, share in ((fused.model, 1e-5), (half(fused.model), FP16)):
            assert_near(answer(model, flat(feed)), wanted, share)
            rectangular = rows_graph(model, takes_empty=False)
            assert rectangular is not None
            found = answer(rectangular, feed)
            assert_near(found[:-1], wanted, share)
            assert np.isfinite(found[-1]).all()  # the row of padding


@pytest.mark.parametrize(
    "model_type",
    [kind if kind in (*KINDS, *DIVIDING) else full(kind) for kind in NAMES if kind != "granite"],  # no classifier
)
def test_the_first_token_of_a_row_of_padding_is_attended_to_and_its_outputs_are_finite(model_type: str) -> None:
    model, feed = graphs(model_type, "text-classification", divides=True)[1].model, padded()
    attended = feed["attention_mask"].copy()
    attended[-1, 0] = 1
    for each in (model, half(model)):
        rectangular = rows_graph(each, takes_empty=False)
        assert rectangular is not None
        answers = answer(rectangular, feed)
        assert np.isfinite(answers).all()
        np.testing.assert_array_equal(answers, answer(rectangular, feed | {"attention_mask": attended}))


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_attention_is_one_operator_where_only_padding_is_hidden(model_type: str) -> None:
    _, fused = graphs(model_type)
    found = kinds(fused.model)
    assert bool(found["Attention"]) == (model_type not in TRACED) == bool(fused.attentions)
    assert found["Attention"] == fused.attentions and found["Softmax"] == fused.traced
    assert bool(fused.traced) == (model_type in TRACED | ENCODER_DECODERS)
    assert {node.op_type for node in fused.model.graph.node if node.domain} <= FUSED_ON_GPU  # else hfx lint warns


def test_a_layer_of_bert_has_seven_nodes() -> None:
    graph, fused = graphs("bert")
    layers = tiny_encoders.SMALL["num_hidden_layers"]
    found = kinds(fused.model)
    assert (found["Attention"], found["BiasGelu"], found["SkipLayerNormalization"]) == (layers, layers, 2 * layers + 1)
    assert found["MatMul"] == 3 * layers + 1  # and one of pooling
    assert not {"LayerNormalization", "Softmax", "Erf", "Transpose", "Reshape"} & found.keys()
    assert {value.name for value in graph.graph.output} == {value.name for value in fused.model.graph.output}


def test_fillers_that_no_token_attends_to_keep_the_traced_attention() -> None:
    kind = usual_kind("feature-extraction")
    model = tiny_encoders.build("bert", kind.auto_class, num_attention_heads=2)
    graph = build_graph(model, kind, tiny_encoders.PAD, make_pooler(TokenLayers(of_roles=True)))
    simplify_masks(graph, tiny_encoders.POSITIONS)
    assert fuse(clean(graph)).attentions == 0


def test_a_graph_without_simplified_masks_keeps_the_traced_attention() -> None:
    """Masks of texts that are too long to be compared may have windows."""
    kind = usual_kind("text-classification")
    graph = build_graph(
        tiny_encoders.build("bert", kind.auto_class, num_attention_heads=2), kind, tiny_encoders.PAD, None
    )
    assert fuse(graph).attentions == 0


def test_a_row_of_a_rectangular_batch_is_one_sequence_of_a_zero_shot_model() -> None:
    _, fused = graphs("bart", "zero-shot-classification")
    feed = padded()
    items = {"item_shape": np.int32([[2, WIDTH], [3, WIDTH]])}
    wanted = answer(fused.model, {name: value[:-1].ravel() for name, value in feed.items()} | items)
    for model, share in ((fused.model, 1e-5), (half(fused.model), FP16)):
        rectangular = rows_graph(model, takes_empty=False)
        assert rectangular is not None
        found = answer(rectangular, feed)
        assert_near(found[:2], wanted[0, :2], share)
        assert_near(found[2:-1], wanted[1], share)


def test_a_graph_that_computes_only_some_rows_has_no_rectangular_one() -> None:
    """Queries of a sparse encoder with a table of numbers are not computed."""
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["ids", "axis"], ["sums"]),
        helper.make_node("MatMul", ["sums", "weight"], ["embedding"]),
    ]
    inputs = [onnx_toys.integers(name, "rows", "width") for name in ("input_ids", "attention_mask")]
    constants = {"axis": np.array([1]), "weight": np.ones((1, 3), np.float32)}
    graph = onnx_toys.graph(nodes, inputs, [onnx_toys.floats("embedding", "rows", 3)], constants)
    plain = onnx.ModelProto()
    plain.CopyFrom(graph)
    flatten_inputs(plain, 1, {"input_ids": 0, "attention_mask": 0})
    assert rows_graph(plain, takes_empty=False) is not None
    flatten_inputs(graph, 1, {"input_ids": 0, "attention_mask": 0}, np.ones(3))
    assert rows_graph(graph, takes_empty=False) is None


# Exports.

FP16_ONLY: dict[str, Any] = {"name": "m", "precision": "fp16", "device": "gpu", "cpu_runtime": "auto"}


def checkpoint(folder: Path, head: str = "ForSequenceClassification") -> Path:
    return tiny_checkpoints.save(folder / "model", tiny_checkpoints.bert(head, initializer_range=0.5))


def net(folder: Path) -> Path:
    return folder / "m_net" / "1"


def external(path: Path) -> set[tuple[tuple[str, str], ...]]:
    """Return where the weights of a graph are: file, offset and length of each."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return {tuple(sorted((e.key, e.value) for e in each.external_data)) for each in tensors if each.external_data}


@pytest.mark.slow
@pytest.mark.usefixtures("few_ordinary_texts")
def test_an_export_has_a_second_graph_with_the_same_weights(tmp_path: Path) -> None:
    manifest = export_checkpoint(checkpoint(tmp_path), tmp_path, **FP16_ONLY)
    config = read_config(tmp_path / "m_net" / "configs" / "gpu.pbtxt")
    file, rows = config["default_model_filename"], config["parameters"]["rows_file"]["string_value"]
    assert {path.name for path in net(tmp_path).iterdir()} == {file, f"{file}.data", rows}
    assert external(net(tmp_path) / rows) == external(net(tmp_path) / file) != set()
    graph = onnx.load(net(tmp_path) / rows, load_external_data=False).graph
    inputs = {each.name: [dim.dim_param for dim in each.type.tensor_type.shape.dim] for each in graph.input}
    assert inputs == {name: ["rows", "width"] for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert manifest.choices["gpu_graph"] == {"fused_attentions": 2, "traced_attentions": 0, "rows_file": True}
    figures: Any = manifest.parity["gpu"]
    assert figures["rows_file"]["requests"] == figures["requests"]


@pytest.mark.slow
@pytest.mark.usefixtures("few_ordinary_texts")
def test_a_model_that_python_serves_has_no_second_graph(tmp_path: Path) -> None:
    manifest = export_checkpoint(checkpoint(tmp_path, "ForTokenClassification"), tmp_path, **FP16_ONLY)
    assert not [*net(tmp_path).glob("*rows*")]
    assert "rows_file" not in read_config(tmp_path / "m_net" / "configs" / "gpu.pbtxt")["parameters"]
    assert manifest.choices["gpu_graph"] == {"fused_attentions": 2, "traced_attentions": 0, "rows_file": False}


@pytest.mark.slow
@pytest.mark.usefixtures("few_ordinary_texts")
def test_the_gate_refuses_a_second_graph_with_other_answers(tmp_path: Path) -> None:
    def spoil(plan: Any, artefacts: EncoderArtefacts) -> EncoderArtefacts:
        [path] = artefacts.net_folder(plan).glob("*.rows.onnx")
        model = onnx.load(path, load_external_data=False)
        for node in model.graph.node:
            for attribute in (each for each in node.attribute if each.name == "scale"):
                attribute.f = -attribute.f
        path.write_bytes(model.SerializeToString())
        return artefacts

    at = 1 + next(at for at, step in enumerate(STEPS) if step.run is choose_nets)
    steps = [step for step in (*STEPS[:at], Step("Spoiling", spoil), *STEPS[at:]) if not step.labelled]
    with pytest.raises(VerificationFailed, match=r"model\.fp16\.rows\.onnx"):
        export_checkpoint(checkpoint(tmp_path), tmp_path, steps, **FP16_ONLY)
    assert not net(tmp_path).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("few_ordinary_texts")
def test_the_file_for_cpus_does_not_depend_on_the_file_for_gpus(tmp_path: Path) -> None:
    source = checkpoint(tmp_path)
    for device in ("cpu", "both"):
        export_checkpoint(source, tmp_path / device, name="m", device=device)
    for name in ("model.onnx", "model.onnx.data"):
        assert (net(tmp_path / "both") / name).read_bytes() == (net(tmp_path / "cpu") / name).read_bytes()
    gpu = read_config(tmp_path / "both" / "m_net" / "configs" / "gpu.pbtxt")
    assert gpu["default_model_filename"] == "model.gpu.onnx"
