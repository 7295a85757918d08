"""What an export will build is decided, and refused, before any work."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointUnsupported, UsageError
from hfx.exporter.encoder.plan import WIDTHS, EncoderPlan, widths_up_to
from hfx.exporter.options import ExportOptions
from hfx.exporter.plan import make_plan
from hfx.exporter.source import Checkpoint
from hfx.names import Task
from tests import tiny_checkpoints

BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 32,
    "max_position_embeddings": 512,
}
NLI = {"0": "contradiction", "1": "neutral", "2": "ENTAILMENT"}


def checkpoint(folder: Path, **config: Any) -> Checkpoint:
    return Checkpoint("org/Some_Model.v2", folder, None, BERT | config, ())


def plan(folder: Path, options: ExportOptions | None = None, **config: Any) -> EncoderPlan:
    made = make_plan(checkpoint(folder, **config), options or ExportOptions())
    assert isinstance(made, EncoderPlan)
    return made


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForSequenceClassification", Task.TEXT_CLASSIFICATION),
        ("BertForTokenClassification", Task.TOKEN_CLASSIFICATION),
        ("BertForQuestionAnswering", Task.QUESTION_ANSWERING),
        ("BertModel", Task.FEATURE_EXTRACTION),
    ],
)
def test_the_architecture_tells_the_task(tmp_path: Path, architecture: str, task: Task) -> None:
    assert plan(tmp_path, architectures=[architecture]).task.task is task


def test_an_entailment_label_tells_zero_shot(tmp_path: Path) -> None:
    assert plan(tmp_path, id2label=NLI).task.task is Task.ZERO_SHOT_CLASSIFICATION


def test_a_given_task_wins(tmp_path: Path) -> None:
    options = ExportOptions(task="text-classification")
    assert plan(tmp_path, options, id2label=NLI).task.task is Task.TEXT_CLASSIFICATION


@pytest.mark.parametrize("architectures", [None, [], ["BertForMaskedLM"], ["ViTForImageClassification"]])
def test_an_architecture_of_no_task_names_the_tasks(tmp_path: Path, architectures: list[str] | None) -> None:
    with pytest.raises(CheckpointUnsupported, match="text-classification, token-classification"):
        plan(tmp_path, architectures=architectures)


def test_an_unknown_task_names_the_tasks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="text-classification, token-classification"):
        plan(tmp_path, ExportOptions(task="mining"))


def test_zero_shot_needs_an_entailment_label(tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match="entailment"):
        plan(tmp_path, ExportOptions(task="zero-shot-classification"))


@pytest.mark.parametrize(
    ("precision", "device", "built"),
    [
        (None, "both", ("fp32", "fp16")),
        (None, "cpu", ("fp32", None)),
        (None, "gpu", (None, "fp16")),
        ("int8", "both", ("int8", "fp16")),
        ("int8", "cpu", ("int8", None)),
        ("fp32", "both", ("fp32", "fp32")),
        ("fp32", "gpu", (None, "fp32")),
        ("fp16", "gpu", (None, "fp16")),
    ],
)
def test_precision_and_device_say_what_is_built(tmp_path: Path, precision: Any, device: Any, built: Any) -> None:
    made = plan(tmp_path, ExportOptions(precision=precision, device=device))
    assert (made.cpu_precision, made.gpu_precision) == built


@pytest.mark.parametrize(
    ("precision", "device"),
    [
        ("fp16", "both"),
        ("fp16", "cpu"),
        ("int8", "gpu"),
        ("int4", "both"),
        ("int4", "cpu"),
        ("", "cpu"),
        ("FP32", "cpu"),
    ],
)
def test_a_precision_that_a_device_has_not_is_refused(tmp_path: Path, precision: str, device: Any) -> None:
    with pytest.raises(UsageError) as caught:
        plan(tmp_path, ExportOptions(precision=precision, device=device))
    assert caught.value.fix


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert", "mpnet", "esm"])
def test_positions_that_begin_behind_the_padding_are_fewer(tmp_path: Path, model_type: str) -> None:
    config = {"model_type": model_type, "max_position_embeddings": 514, "pad_token_id": 1}
    assert plan(tmp_path, **config).max_length == 512


def test_the_tokenizer_s_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 256}')
    assert plan(tmp_path).max_length == 256


@pytest.mark.parametrize("stated", [1e30, 1_000_000_000_000_000_019_884_624_838_656, 1024, None, "256", 0, -1, [512]])
def test_a_tokenizer_without_a_lesser_limit_leaves_the_model_s(tmp_path: Path, stated: object) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    assert plan(tmp_path).max_length == 512


def test_a_model_without_positions_reads_512_tokens(tmp_path: Path) -> None:
    assert plan(tmp_path, max_position_embeddings=None).max_length == 512


def test_sentence_transformers_limit_counts_for_embeddings(tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert plan(tmp_path, architectures=["BertModel"]).max_length == 128
    assert plan(tmp_path).max_length == 512


def test_a_pooling_that_can_not_be_exported_is_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(CheckpointUnsupported, match="Pooling"):
        plan(tmp_path, architectures=["BertModel"])


def test_windows_of_question_answering_have_64_to_384_tokens(tmp_path: Path) -> None:
    config = {"architectures": ["BertForQuestionAnswering"]}
    assert plan(tmp_path, **config).max_length == 384
    assert plan(tmp_path, ExportOptions(max_length=64), **config).max_length == 64
    with pytest.raises(UsageError, match="64 to 384"):
        plan(tmp_path, ExportOptions(max_length=63), **config)
    with pytest.raises(CheckpointUnsupported, match="at most 63 tokens; 64 are needed"):
        plan(tmp_path, max_position_embeddings=63, **config)


@pytest.mark.parametrize(
    ("alias", "task"),
    [
        ("sentiment-analysis", Task.TEXT_CLASSIFICATION),
        ("ner", Task.TOKEN_CLASSIFICATION),
        ("sentence-similarity", Task.FEATURE_EXTRACTION),
    ],
)
def test_another_name_of_a_task_is_taken(tmp_path: Path, alias: str, task: Task) -> None:
    assert plan(tmp_path, ExportOptions(task=alias)).task.task is task


def test_a_shorter_length_may_be_asked_for(tmp_path: Path) -> None:
    made = plan(tmp_path, ExportOptions(max_length=100))
    assert (made.max_length, made.widths[-1]) == (100, 100)


@pytest.mark.parametrize("length", [-1, 0, 15, 513, 10**9])
def test_a_length_out_of_range_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(UsageError, match="16 to 512"):
        plan(tmp_path, ExportOptions(max_length=length))


@pytest.mark.parametrize(
    ("length", "widths"),
    [
        (8, (8,)),
        (16, (16,)),
        (17, (16, 17)),
        (128, (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128)),
        (130, (16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 130)),
        (9000, (*WIDTHS, 9000)),
    ],
)
def test_the_widths_end_with_the_longest_input(length: int, widths: tuple[int, ...]) -> None:
    assert widths_up_to(length) == widths


@pytest.mark.parametrize("size", [0, -1, 1025])
def test_a_batch_size_out_of_range_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UsageError, match="1 to 1024"):
        plan(tmp_path, ExportOptions(max_batch_size=size))


@pytest.mark.parametrize("slots", [1, 32])
def test_an_option_of_generators_is_refused(tmp_path: Path, slots: int) -> None:
    with pytest.raises(UsageError, match="text-classification model does not take --slots"):
        plan(tmp_path, ExportOptions(slots=slots))


@pytest.mark.parametrize("drop", [-0.01, 1.01, float("nan")])
def test_a_drop_that_is_no_share_is_refused(tmp_path: Path, drop: float) -> None:
    with pytest.raises(UsageError, match="max-drop"):
        plan(tmp_path, ExportOptions(max_drop=drop))


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.csv"):
        plan(tmp_path, ExportOptions(verify_data=(tmp_path / "gone.csv",)))


def test_the_name_is_made_from_the_id(tmp_path: Path) -> None:
    assert plan(tmp_path).name == "some_model-v2"


@pytest.mark.parametrize("name", ["Upper", "a/b", "..", "x_net", "x_stream", "-x", "a" * 129])
def test_a_name_that_can_not_be_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        plan(tmp_path, ExportOptions(name=name))


@pytest.mark.parametrize("force", [True, False])
def test_a_description_says_whether_a_model_is_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "repository" / "taken").mkdir(parents=True)
    options = ExportOptions(name="taken", repository=tmp_path / "repository", force=force)
    assert plan(tmp_path, options).describe()["replaces"] is force
    assert plan(tmp_path, replace(options, name="free")).describe()["replaces"] is False


@pytest.mark.parametrize("prefix", ["Bert", "DistilBert", "Roberta", "XLMRoberta", "MPNet", "Electra", "DebertaV2"])
def test_the_longest_input_is_the_longest_that_torch_reads(tmp_path: Path, prefix: str) -> None:
    import torch
    import transformers

    config = getattr(transformers, f"{prefix}Config")(vocab_size=20, **tiny_checkpoints.SIZES)
    model = getattr(transformers, f"{prefix}Model")(config).eval()
    longest = plan(tmp_path, model_type=config.model_type, max_position_embeddings=64).max_length
    model(input_ids=torch.full((1, longest), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 7))
