"""The plan of an export is decided, or refused, before any work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointUnsupported, HfxError, UsageError
from hfx.exporter.encoder.kinds.kind import labels_of
from hfx.exporter.encoder.plan import WIDTHS, EncoderPlan, widths_up_to
from hfx.exporter.options import ExportOptions
from hfx.exporter.pipeline import make_plan
from hfx.exporter.source import Checkpoint
from hfx.names import Task
from tests.rigs.checkpoints import tiny_checkpoints

BERT = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": 32,
    "max_position_embeddings": 512,
}
NLI = {"0": "contradiction", "1": "neutral", "2": "ENTAILMENT"}
ONE_LABEL = {"id2label": {"0": "LABEL_0"}}
SAVED = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}  # by its CrossEncoder


def checkpoint(folder: Path, **config: Any) -> Checkpoint:
    return Checkpoint("org/Some_Model.v2", folder, None, BERT | config, ())


def plan(folder: Path, options: ExportOptions | None = None, **config: Any) -> EncoderPlan:
    made = make_plan(checkpoint(folder, **config), options or ExportOptions())
    assert isinstance(made, EncoderPlan)
    return made


@pytest.mark.parametrize(
    ("task", "config", "decided"),
    [
        (None, {"architectures": ["BertForSequenceClassification"]}, Task.TEXT_CLASSIFICATION),
        (None, {"architectures": ["BertForTokenClassification"]}, Task.TOKEN_CLASSIFICATION),
        (None, {"architectures": ["BertForQuestionAnswering"]}, Task.QUESTION_ANSWERING),
        (None, {"architectures": ["BertModel"]}, Task.FEATURE_EXTRACTION),
        (None, {"id2label": NLI}, Task.ZERO_SHOT_CLASSIFICATION),
        (None, {"id2label": NLI} | SAVED, Task.ZERO_SHOT_CLASSIFICATION),
        (None, ONE_LABEL, Task.TEXT_CLASSIFICATION),
        (None, ONE_LABEL | SAVED, Task.TEXT_RANKING),
        ("text-ranking", ONE_LABEL, Task.TEXT_RANKING),
        ("text-classification", ONE_LABEL | SAVED, Task.TEXT_CLASSIFICATION),
        ("text-classification", {"id2label": NLI}, Task.TEXT_CLASSIFICATION),
        ("sentiment-analysis", {}, Task.TEXT_CLASSIFICATION),
        ("ner", {}, Task.TOKEN_CLASSIFICATION),
        ("sentence-similarity", {}, Task.FEATURE_EXTRACTION),
    ],
    ids=str,
)
def test_the_task_is_the_option_or_follows_from_the_config(
    tmp_path: Path, task: str | None, config: dict[str, Any], decided: Task
) -> None:
    assert plan(tmp_path, ExportOptions(task=task), **config).kind.task is decided


def test_one_label_without_a_mark_may_be_a_cross_encoders(tmp_path: Path) -> None:
    [note] = plan(tmp_path, **ONE_LABEL).notes
    assert "--task text-ranking" in note
    chosen = ExportOptions(task="text-classification")
    assert plan(tmp_path, chosen, **ONE_LABEL).notes == plan(tmp_path).notes == ()


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, ["LABEL_0", "LABEL_1"]),
        ({"num_labels": 3}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"label2id": {"x": 0, "y": 1}}, ["LABEL_0", "LABEL_1"]),
        ({"id2label": {"1": "b", "0": "a"}}, ["a", "b"]),
        ({"id2label": {"1": "b", "0": "a"}, "num_labels": 2}, ["a", "b"]),
        ({"id2label": {"1": "b", "0": "a"}, "num_labels": 3}, ["LABEL_0", "LABEL_1", "LABEL_2"]),
    ],
)
def test_labels_are_those_of_transformers(config: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    import transformers

    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | config))
    names = transformers.AutoConfig.from_pretrained(tmp_path).id2label
    assert labels_of(config) == [names[at] for at in range(len(names))] == expected


@pytest.mark.parametrize(
    ("numbers", "entailment", "contradiction"),
    [
        (None, 2, 0),
        ({"contradiction": 0, "neutral": 1, "ENTAILMENT": 2}, 2, 0),
        ({"Entails": 1, "entailment": 2}, 1, 0),  # the first in label2id, as in transformers' pipeline
        ({"entailment": 0}, 0, 2),
    ],
)
def test_entailment_is_the_label_that_label2id_has_first(
    numbers: dict[str, int] | None, entailment: int, contradiction: int, tmp_path: Path
) -> None:
    made = plan(tmp_path, id2label=NLI, **({} if numbers is None else {"label2id": numbers}))
    settings = made.kind.last_step_settings(made.checkpoint.config)
    assert settings == {"entailment": entailment, "contradiction": contradiction}


@pytest.mark.parametrize("numbers", [{"no": 0, "yes": 1}, {"entailment": 3}, {"entailment": -1}])
def test_an_entailment_label_without_a_class_is_refused(numbers: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(CheckpointUnsupported, match="label2id"):
        plan(tmp_path, id2label=NLI, label2id=numbers)


@pytest.mark.parametrize("architectures", [None, [], ["BertForNextSentencePrediction"], ["ViTForImageClassification"]])
def test_an_architecture_of_no_task_names_the_tasks(tmp_path: Path, architectures: list[str] | None) -> None:
    with pytest.raises(CheckpointUnsupported, match=r"text-classification .*, token-classification "):
        plan(tmp_path, architectures=architectures)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task": "mining"}, UsageError, r"text-classification .*, token-classification "),
        ({"task": "zero-shot-classification"}, CheckpointUnsupported, "entailment"),
        *(({"precision": p, "device": d}, UsageError, "Choose|Add --device gpu") for p, d in
          (("fp16", "both"), ("fp16", "cpu"), ("int4", "both"), ("int4", "cpu"), ("", "cpu"), ("FP32", "cpu"))),
        ({"precision": "int8", "device": "gpu"}, UsageError, "int8 is for CPUs"),
        *(({"cpu_runtime": r, "device": "gpu"}, UsageError, f"{r} is for CPUs") for r in ("native", "onnxruntime")),
        ({"cpu_math": "bf16", "device": "gpu"}, UsageError, "bf16 is for CPUs"),
        ({"cpu_math": "bf16", "precision": "int8"}, UsageError, "bf16 is for fp32, not int8"),
        ({"cpu_math": "bf16", "cpu_runtime": "onnxruntime"}, UsageError, "onnxruntime computes in float32"),
        *(({"max_length": length}, UsageError, "16 to 512") for length in (-1, 0, 15, 513, 10**9)),
        *(({"max_batch_size": size}, UsageError, "1 to 1024") for size in (0, -1, 1025)),
        *(({"slots": n}, UsageError, "text-classification model does not take --slots") for n in (1, 32)),
        *(({"max_drop": drop}, UsageError, "max-drop") for drop in (-0.01, 1.01, float("nan"))),
        *(({"threshold": (score,)}, UsageError, "threshold") for score in ("-1", "1.01", "nan", "LABEL_0=2", "x")),
        ({"safe_label": ("UNKNOWN",)}, UsageError, "UNKNOWN"),
        ({"safe_label": ("LABEL_0", "LABEL_1")}, UsageError, "All labels"),
        *(
            ({"task": task, name: value}, UsageError, "is for text-classification, not for")
            for task in ("text-ranking", "zero-shot-classification", "token-classification")
            for name, value in (("threshold", ("0.3",)), ("safe_label", ("a",)), ("calibrate", Path("a.csv")))
        ),
        ({"verify_data": (Path("gone.csv"),)}, UsageError, "gone.csv"),
        *(({"name": n}, UsageError, "name") for n in ("Upper", "a/b", "..", "x_net", "x_stream", "-x", "a" * 129)),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)  # fmt: skip
def test_an_option_that_can_not_be_honoured_is_refused(
    tmp_path: Path, options: dict[str, Any], error: type[HfxError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        plan(tmp_path, ExportOptions(**options))
    assert caught.value.fix


def test_bfloat16_is_refused_where_native_operators_do_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ExportOptions(cpu_math="bf16")
    assert plan(tmp_path, options).describe()["cpu_math"] == "bf16"
    monkeypatch.setenv("HFX_NATIVE_KERNELS", "none")
    with pytest.raises(UsageError, match="bf16 needs native operators, and ") as caught:
        plan(tmp_path, options)
    assert caught.value.fix


def test_only_what_is_computed_in_floats_on_the_cpu_has_a_math(tmp_path: Path) -> None:
    assert plan(tmp_path).describe()["cpu_math"] == "fp32"
    assert plan(tmp_path, ExportOptions(precision="int8")).describe()["cpu_math"] is None


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
    assert (made.built.get("cpu"), made.built.get("gpu")) == built


EMBEDDINGS = {"architectures": ["BertModel"]}
UNREAD = {"sentence_bert_config.json": {"max_seq_length": 128}}  # by sentence-transformers, without modules.json
TRAINED = UNREAD | {
    "modules.json": [
        {"type": f"sentence_transformers.models.{kind}", "path": path}
        for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"))
    ],
    "1_Pooling/config.json": {},
}
NO_LIMIT = (1e30, 1_000_000_000_000_000_019_884_624_838_656, 1024, None, "256", 0, -1, [512])


@pytest.mark.parametrize(
    ("config", "files", "longest"),
    [
        *(({"model_type": name, "max_position_embeddings": 514, "pad_token_id": 1}, {}, 512)  # begin behind padding
          for name in ("roberta", "xlm-roberta", "camembert", "mpnet", "esm")),
        ({"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 0}, {}, 512),
        *(({}, {"tokenizer_config.json": {"model_max_length": stated}}, 512) for stated in NO_LIMIT),
        ({}, {"tokenizer_config.json": {"model_max_length": 256}}, 256),
        ({"max_position_embeddings": None}, {}, 512),
        ({}, UNREAD, 512),
        (EMBEDDINGS, TRAINED, 128),
        (EMBEDDINGS, UNREAD, 512),
    ],
    ids=str,
)  # fmt: skip
def test_the_longest_input_is_the_least_of_what_the_files_say(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], longest: int
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))
    assert plan(tmp_path, **config).max_length == longest


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
    with pytest.raises(CheckpointUnsupported, match="63 tokens; 64"):
        plan(tmp_path, max_position_embeddings=63, **config)


def test_a_shorter_length_may_be_asked_for(tmp_path: Path) -> None:
    made = plan(tmp_path, ExportOptions(max_length=100))
    assert (made.max_length, made.widths[-1]) == (100, 100)


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


def test_the_name_is_made_from_the_id(tmp_path: Path) -> None:
    assert plan(tmp_path).name == "some_model-v2"


@pytest.mark.parametrize("force", [True, False])
def test_a_description_says_whether_a_model_is_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "repository" / "taken").mkdir(parents=True)
    options = ExportOptions(name="taken", repository=tmp_path / "repository", force=force)
    assert plan(tmp_path, options).describe()["replaces"] is force
    assert (
        plan(tmp_path, ExportOptions(name="free", repository=options.repository, force=force)).describe()["replaces"]
        is False
    )


@pytest.mark.parametrize("pad_id", [0, 1, 4])
@pytest.mark.parametrize("prefix", ["Bert", "DistilBert", "Roberta", "XLMRoberta", "MPNet", "Electra", "DebertaV2"])
def test_the_longest_input_is_the_longest_that_torch_reads(tmp_path: Path, prefix: str, pad_id: int) -> None:
    import torch
    import transformers

    config = getattr(transformers, f"{prefix}Config")(vocab_size=20, pad_token_id=pad_id, **tiny_checkpoints.SIZES)
    model = getattr(transformers, f"{prefix}Model")(config).eval()
    stated = {"model_type": config.model_type, "max_position_embeddings": 64, "pad_token_id": pad_id}
    longest = plan(tmp_path, **stated).max_length
    model(input_ids=torch.full((1, longest), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 7))


def test_shorter_vectors_are_an_option_where_the_checkpoint_or_the_user_says_so(tmp_path: Path) -> None:
    def has(dimensions: bool = False, **config: Any) -> bool:
        made = plan(tmp_path, ExportOptions(dimensions=dimensions), architectures=["BertModel"], **config)
        return any(spec.name == "dimensions" for spec in made.kind.inputs)

    assert not has() and not has(matryoshka_dimensions=[], is_matryoshka=False)
    assert has(dimensions=True) and has(matryoshka_dimensions=[8, 16]) and has(is_matryoshka=True)
    with pytest.raises(UsageError, match="--dimensions is for feature-extraction"):
        plan(tmp_path, ExportOptions(dimensions=True), architectures=["BertForSequenceClassification"])
