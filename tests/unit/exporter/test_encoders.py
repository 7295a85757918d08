"""Every architecture, for every task that transformers has a class for, compared with torch.

Each row of a ragged batch is compared with the same text alone, without padding.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hfx import names
from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.architectures import DECODERS, ENCODERS, REFUSED, TEXT_ENCODERS, check_encoder
from hfx.exporter.encoder.checkpoint.pooling import Pooling, TokenLayers, make_pooler
from hfx.exporter.encoder.graph.build import build_graph, inlined
from hfx.exporter.encoder.graph.trace import OTHER, TRACED
from hfx.exporter.encoder.kinds import usual_kind
from hfx.exporter.encoder.kinds.token_vectors import TokenVectors
from hfx.exporter.load import load_model
from hfx.exporter.source import Checkpoint
from hfx.names import Task
from tests.attacks.damage import edit_json
from tests.rigs.checkpoints import tiny_checkpoints, tiny_encoders, tiny_generators
from tests.rigs.checkpoints.published import export_checkpoint
from tests.rigs.files import onnx_toys
from tests.rigs.machine.tiers import full, since_transformers

TASKS = (Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.QUESTION_ANSWERING, Task.FEATURE_EXTRACTION)
# Lengths of the rows of a batch: alone, ragged, one row much longer; none as the traced example has them.
BATCHES = ((1,), (3,), (40,), (5, 2), (1, 17, 9), (33, 33, 33), (4, 100, 1, 64))
MEAN = make_pooler(Pooling())
TOLERANCE = 2e-5  # float32 sums in other orders; a wrong graph is off by more than 1e-2


def ragged(model: Any, lengths: tuple[int, ...]) -> list[dict[str, NDArray[np.int64]]]:
    """Return rows of random ids; each ends with the end token if there is one, which BART's classifiers look for."""
    random, end = np.random.default_rng(sum(lengths)), model.config.eos_token_id
    rows = []
    for length in lengths:
        ids = random.integers(5, tiny_encoders.VOCABULARY, length)
        ids[-1] = end if isinstance(end, int) else ids[-1]
        types = (np.arange(length) >= length // 2).astype(np.int64)
        rows.append({names.INPUT_IDS: ids, names.ATTENTION_MASK: np.ones_like(ids), names.TOKEN_TYPE_IDS: types})
    return rows


def in_torch(model: Any, row: dict[str, Any], inputs: list[str]) -> dict[str, Any]:
    """Return the model's own outputs for one row, without padding."""
    feed = {name: torch.from_numpy(row[name][None]) for name in inputs}
    with torch.no_grad():
        outputs = dict(model(**feed).items())
    if "last_hidden_state" in outputs:
        outputs[names.EMBEDDING] = MEAN(outputs["last_hidden_state"], feed[names.ATTENTION_MASK])
    return {name: value[0].numpy() for name, value in outputs.items() if isinstance(value, torch.Tensor)}


# Each architecture with one task, of encoders the tasks in turn; all of them in make test-full.
PAIRS = [
    (model_type, task) if task is TASKS[place % len(TASKS)] else full(model_type, task)
    for place, model_type in enumerate(sorted(ENCODERS))
    for task in TASKS
]
PAIRS += [
    (model_type, task) if task is TASKS[0] else full(model_type, task)
    for model_type in sorted(DECODERS | TEXT_ENCODERS)
    for task in (TASKS if model_type in DECODERS else TASKS[:3])
]


@pytest.mark.parametrize(("model_type", "task"), PAIRS)
def test_the_graph_answers_like_torch_at_every_size(model_type: str, task: Task) -> None:
    decided = usual_kind(task)
    model = tiny_encoders.build(model_type, decided.auto_class)
    if model is None:  # such as BART's token classification
        return
    padding = model.config.pad_token_id or 0
    graph = build_graph(model, decided, padding, MEAN if decided.headless else None, exporter="own")
    inputs = [value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE]
    outputs = [value.name for value in graph.graph.output]
    run = onnx_toys.session(graph)
    for lengths in BATCHES:
        rows = ragged(model, lengths)
        expected = [in_torch(model, row, inputs) for row in rows]
        feed = {name: np.concatenate([row[name] for row in rows]).astype(np.int32) for name in inputs}
        shape = [[length] if decided.item_rank == 1 else [1, length] for length in lengths]
        found = run(**feed, **{names.ITEM_SHAPE: np.array(shape, np.int32)})
        for name, got in zip(outputs, found, strict=True):
            for row, length in enumerate(lengths):
                one = got[row, 0] if decided.item_rank == 2 else got[row]
                by_token = task in (Task.TOKEN_CLASSIFICATION, Task.QUESTION_ANSWERING)
                one = one[:length] if by_token else one
                np.testing.assert_allclose(one, expected[row][name], atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("deberta", {"max_relative_positions": 20}),
        ("deberta", {"pos_att_type": "c2p"}),
        ("deberta", {"pos_att_type": ["p2c"]}),
        ("deberta", {"pos_att_type": []}),
        ("deberta", {"talking_head": True}),
        ("deberta", {"relative_attention": False}),
        ("deberta-v2", {"position_buckets": 11, "max_relative_positions": 40}),
        ("deberta-v2", {"position_buckets": -1, "norm_rel_ebd": "none"}),
        ("deberta-v2", {"share_att_key": False, "conv_kernel_size": 0}),
        ("deberta-v2", {"share_att_key": False, "pos_att_type": ["p2c"]}),
        ("deberta-v2", {"pos_att_type": ["c2p"], "num_attention_heads": 2}),
        ("deberta-v2", {"relative_attention": False}),
    ],
)
def test_relative_positions_of_any_kind_answer_like_torch(model_type: str, changes: dict[str, Any]) -> None:
    """One graph has operators, one their definitions; some texts are longer than the positions reach."""
    task = usual_kind(Task.TOKEN_CLASSIFICATION)
    model = tiny_encoders.build(model_type, task.auto_class, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)  # biases are 0 at the start
    graph = build_graph(model, task, 1, None)
    inputs = [value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE]
    assert not inlined(graph).functions
    for run in map(onnx_toys.session, (graph, inlined(graph))):
        for lengths in BATCHES:
            rows = ragged(model, lengths)
            feed = {name: np.concatenate([row[name] for row in rows]).astype(np.int32) for name in inputs}
            (found,) = run(**feed, **{names.ITEM_SHAPE: np.array([[1, length] for length in lengths], np.int32)})
            for row, got in zip(rows, found[:, 0], strict=True):
                expected = in_torch(model, row, inputs)[names.LOGITS]
                np.testing.assert_allclose(got[: len(expected)], expected, atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("gemma3_text", {"use_bidirectional_attention": False}),
        ("gemma3_text", {"layer_types": ["full_attention"] * 3}),
        ("gemma3_text", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 2}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        ("qwen3", {"attention_bias": True, "num_key_value_heads": 4}),
    ],
)
def test_masks_of_decoders_answer_like_torch(model_type: str, changes: dict[str, Any]) -> None:
    """The vectors of all tokens are compared, so that each query's own keys count."""
    task = TokenVectors(numbers=32)
    model = tiny_encoders.build(model_type, task.auto_class, **changes)
    graph = build_graph(model, task, 1, make_pooler(TokenLayers()))
    inputs, run = [names.INPUT_IDS, names.ATTENTION_MASK], onnx_toys.session(graph)
    for lengths in BATCHES:
        rows = ragged(model, lengths)
        feed = {name: np.concatenate([row[name] for row in rows]).astype(np.int32) for name in inputs}
        (found,) = run(**feed, **{names.ITEM_SHAPE: np.array([[length] for length in lengths], np.int32)})
        for row, got in zip(rows, found, strict=True):
            expected = in_torch(model, row, inputs)["last_hidden_state"]
            np.testing.assert_allclose(got[: len(expected)], expected, atol=TOLERANCE, rtol=1e-5)


@since_transformers(5, 23)
def test_relative_positions_that_fail_in_torch_are_refused() -> None:
    task = usual_kind(Task.TEXT_CLASSIFICATION)
    with pytest.raises(CheckpointUnsupported, match="ONNX: division by zero"):
        build_graph(tiny_encoders.build("deberta-v2", task.auto_class, position_buckets=1), task, 1, None)


@pytest.mark.parametrize(("model_type", "by"), [("eurobert", "late"), ("eurobert", "mean"), ("modernbert", "mean")])
def test_a_classifier_that_pools_by_the_mean_answers_alike_alone_and_in_a_batch(model_type: str, by: str) -> None:
    task = usual_kind(Task.TEXT_CLASSIFICATION)
    model = tiny_encoders.build(model_type, task.auto_class, classifier_pooling=by)
    run, inputs = onnx_toys.session(build_graph(model, task, 1, None)), (names.INPUT_IDS, names.ATTENTION_MASK)

    def logits(rows: list[dict[str, Any]]) -> Any:
        feed = {name: np.concatenate([row[name] for row in rows]).astype(np.int32) for name in inputs}
        return run(**feed, **{names.ITEM_SHAPE: np.array([[1, len(row[inputs[0]])] for row in rows], np.int32)})[0][
            :, 0
        ]

    rows = ragged(model, (3, 9, 40, 64, 100, 64))
    together = logits(rows)
    for row, found in zip(rows, together, strict=True):
        np.testing.assert_allclose(found, in_torch(model, row, [*inputs])[names.LOGITS], atol=TOLERANCE, rtol=1e-5)
    assert np.array_equal(logits(rows[-1:])[0], logits([rows[3], rows[-1]])[1])
    assert np.array_equal(logits(rows[4:5])[0], together[4])


def test_every_architecture_of_the_table_is_compared() -> None:
    assert set(tiny_encoders.CONFIGS) == ENCODERS | DECODERS | TEXT_ENCODERS
    sizes = {value for config in tiny_encoders.CONFIGS.values() for value in config.values() if isinstance(value, int)}
    assert not sizes & {*TRACED[1:], *OTHER[1:]}  # else a constant of a model could pass for an axis


def test_every_classifier_of_transformers_is_supported_or_refused_with_a_reason() -> None:
    from transformers.models.auto import modeling_auto

    heads = ("SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING")
    tables = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES") for head in heads]
    refused = [model_type for types, _ in REFUSED.values() for model_type in types]
    supported = ENCODERS | DECODERS | TEXT_ENCODERS
    assert len(refused) == len({*refused} - supported)
    assert {name for table in tables for name in table} - {"gpt-sw3"} <= supported | {*refused}  # it is a gpt2


@pytest.mark.parametrize("reason", REFUSED)
def test_a_refusal_has_a_reason_and_a_model_to_use(reason: str, tmp_path: Path) -> None:
    for model_type in REFUSED[reason][0]:
        with pytest.raises(CheckpointUnsupported, match=re.escape(reason)) as refused:
            check_encoder(Checkpoint("", tmp_path, None, {"model_type": model_type}, ()), Task.TEXT_CLASSIFICATION)
        assert any(supported in refused.value.fix for supported in ENCODERS)


def test_a_tokenizer_without_token_types_leaves_them_to_the_model() -> None:
    task = usual_kind(Task.TEXT_CLASSIFICATION)
    model = tiny_encoders.build("bert", task.auto_class)
    graph = build_graph(model, task, 0, None, types=False)
    assert [value.name for value in graph.graph.input] == [names.INPUT_IDS, names.ATTENTION_MASK, names.ITEM_SHAPE]
    (row,) = ragged(model, (9,))
    feed = {name: row[name].astype(np.int32) for name in (names.INPUT_IDS, names.ATTENTION_MASK)}
    (found,) = onnx_toys.session(graph)(**feed, **{names.ITEM_SHAPE: np.array([[1, 9]], np.int32)})
    expected = in_torch(model, row, list(feed))[names.LOGITS]
    np.testing.assert_allclose(found[0, 0], expected, atol=TOLERANCE, rtol=1e-5)
    assert np.abs(in_torch(model, row, [*feed, names.TOKEN_TYPE_IDS])[names.LOGITS] - expected).max() > 0.01


@pytest.mark.parametrize(
    ("model_type", "task", "types"),
    [
        ("big_bird", Task.QUESTION_ANSWERING, False),  # then it makes its own, of the question and the context
        ("flaubert", Task.TOKEN_CLASSIFICATION, True),
        ("xlm", Task.TEXT_CLASSIFICATION, True),  # it has none, and looks them up among its words
        ("xlm", Task.TEXT_CLASSIFICATION, False),
    ],
)
def test_token_types_are_those_that_the_tokenizer_gives(model_type: str, task: Task, types: bool) -> None:
    decided = usual_kind(task)
    model = tiny_encoders.build(model_type, decided.auto_class)
    graph = build_graph(model, decided, 1, None, types=types)
    inputs = [value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE]
    assert (names.TOKEN_TYPE_IDS in inputs) == types
    (row,) = ragged(model, (19,))
    feed = {name: row[name].astype(np.int32) for name in inputs}
    shape = np.array([[19] if decided.item_rank == 1 else [1, 19]], np.int32)
    found = onnx_toys.session(graph)(**feed, **{names.ITEM_SHAPE: shape})
    expected = in_torch(model, row, inputs)
    for spec, got in zip(graph.graph.output, found, strict=True):
        one = got[0] if decided.item_rank == 1 else got[0, 0]
        np.testing.assert_allclose(one, expected[spec.name], atol=TOLERANCE, rtol=1e-5)


def test_a_head_whose_width_is_not_the_number_of_labels_is_refused() -> None:
    task = usual_kind(Task.TEXT_CLASSIFICATION)
    model = tiny_encoders.build("flaubert", task.auto_class, summary_proj_to_labels=False)
    with pytest.raises(CheckpointUnsupported, match="gives 32 logits, and config"):
        build_graph(model, task, 1, None)


@since_transformers(5, 18)
def test_a_model_that_fails_on_its_tokenizers_texts_is_refused(tmp_path: Path) -> None:
    task = usual_kind(Task.TEXT_CLASSIFICATION)
    model = tiny_encoders.build("bart", task.auto_class, eos_token_id=100)  # which ends no text of the tokenizer
    with pytest.raises(CheckpointUnsupported, match="at least one <eos>") as refused:
        export_checkpoint(tiny_checkpoints.save(tmp_path / "tiny", model), tmp_path / "repository")
    assert "--max-length" not in refused.value.fix  # the shortest text fails, too


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_fields_that_change_no_answer_change_no_graph(model_type: str, tmp_path: Path) -> None:
    task = usual_kind(Task.QUESTION_ANSWERING)
    model = tiny_encoders.build(model_type, task.auto_class)
    model.save_pretrained(tmp_path)
    edit_json(
        tmp_path / "config.json",
        chunk_size_feed_forward=1,
        return_dict=False,
        output_attentions=True,
        output_hidden_states=True,
    )
    checkpoint = tiny_generators.checkpoint(tmp_path)
    graph = build_graph(load_model(checkpoint, task.auto_class, headless=False), task, 0, None)
    row = {name: value.astype(np.int32) for name, value in ragged(model, (33,))[0].items()}
    inputs = [value.name for value in graph.graph.input if value.name != names.ITEM_SHAPE]
    feed = {name: row[name] for name in inputs} | {names.ITEM_SHAPE: np.array([[1, 33]], np.int32)}
    found = onnx_toys.session(graph)(**feed)
    expected = in_torch(model, ragged(model, (33,))[0], inputs)
    for spec, got in zip(graph.graph.output, found, strict=True):
        np.testing.assert_allclose(got[0, 0], expected[spec.name], atol=TOLERANCE, rtol=1e-5)
