"""Reading of sentence-transformers' files, and refusal of settings that the graph would not honour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError
from hfx.exporter.encoder.checkpoint.pooling import Layer, Mode, Pooling
from hfx.exporter.encoder.checkpoint.sentence_transformers import (
    EMBEDDERS_PROMPTS,
    POOLING_FIELDS,
    Prompts,
    is_cross_encoder,
    read_activation,
    read_max_length,
    read_pooling,
    read_prompts,
    read_scoring,
)

NEW, OLD, LIBRARY = "sentence_transformers", "sbert_ce_default_activation_function", "config_sentence_transformers.json"
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def write(folder: Path, *kinds: str, modes: tuple[str, ...] = ("mean_tokens",), **pooling: Any) -> Path:
    """Write a checkpoint with these modules, and a pooling with these modes."""
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": paths.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    content = {f"pooling_mode_{mode}": mode in modes for mode in MODES} | {"word_embedding_dimension": 32} | pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
    return folder


def refused(folder: Path, kind: type[SourceError]) -> SourceError:
    with pytest.raises(SourceError) as caught:
        read_pooling(folder)
    assert type(caught.value) is kind
    assert str(folder) in caught.value.message
    assert caught.value.fix
    return caught.value


def test_a_plain_checkpoint_is_pooled_by_the_mean(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == Pooling()


@pytest.mark.parametrize(
    ("older", "newer", "mode"),
    [
        ("mean_tokens", "mean", "mean"),
        ("mean_tokens", ["mean"], "mean"),
        ("cls_token", "cls", "cls"),
        ("max_tokens", "max", "max"),
        ("mean_sqrt_len_tokens", "mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("weightedmean_tokens", "weightedmean", "weightedmean"),
        ("lasttoken", ["lasttoken"], "lasttoken"),
    ],
)
def test_the_mode_is_read_as_either_version_writes_it(
    tmp_path: Path, older: str, newer: str | list[str], mode: Mode
) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", modes=(older,))
    assert read_pooling(folder) == Pooling((mode,))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 32, "pooling_mode": newer}))
    assert read_pooling(folder) == Pooling((mode,))


@pytest.mark.parametrize(
    ("content", "modes"),
    [
        ({f"pooling_mode_{mode}": True for mode in MODES[::-1]}, tuple(POOLING_FIELDS.values())),
        ({f"pooling_mode_{mode}": False for mode in MODES}, ("mean",)),
        ({"pooling_mode": ["mean", "cls"], "pooling_mode_max_tokens": True}, ("mean", "cls")),
        ({}, ("mean",)),
    ],
)
def test_several_modes_are_joined_in_the_librarys_order(
    tmp_path: Path, content: dict[str, Any], modes: tuple[Mode, ...]
) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(content))
    assert read_pooling(folder) == Pooling(modes)


# Of what a checkpoint's files say: each is a pipeline that hfx can't export.
POOLING, BERT_CONFIG = "1_Pooling/config.json", "sentence_bert_config.json"
UNSUPPORTED: list[dict[str, Any]] = [
    *({POOLING: {"pooling_mode": stated}} for stated in ("last", ["mean", "sum"], [], 3, {}, [[]])),
    {BERT_CONFIG: {"transformer_task": "fill-mask"}},
    {BERT_CONFIG: {"query_length": 32}},
    {BERT_CONFIG: {"query_expansion": {"length": 32}}},
    {POOLING: {"pooling_mode_of_tomorrow": True}},
    {BERT_CONFIG: {"modality_config": {"text": {"method": "get_text_features"}}}},
    {BERT_CONFIG: {"modality_config": {"text": {"method": "forward", "method_output_name": "pooler_output"}}}},
]


@pytest.mark.parametrize("files", UNSUPPORTED, ids=str)
def test_poolings_and_prepared_texts_that_the_graph_has_not_are_unsupported(
    tmp_path: Path, files: dict[str, Any]
) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    refused(folder, CheckpointUnsupported)


def test_the_normalize_module_is_read(tmp_path: Path) -> None:
    assert read_pooling(write(tmp_path, "Transformer", "Pooling", "Normalize")) == Pooling(layers=(Layer("Normalize"),))


@pytest.mark.parametrize(
    "kinds",
    ["", "Transformer", "Pooling", "Transformer Dense Pooling", "Transformer Pooling CNN",
     "Transformer WordWeights Pooling", "Transformer Normalize Pooling", "Transformer Pooling Pooling",
     "Transformer CNN Pooling", "BoW", "CLIPModel"],
)  # fmt: skip
def test_other_modules_are_unsupported(tmp_path: Path, kinds: str) -> None:
    refused(write(tmp_path, *kinds.split()), CheckpointUnsupported)


def test_modules_of_another_library_are_unsupported(tmp_path: Path) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    assert "custom_st.Transformer" in refused(folder, CheckpointUnsupported).message


GOOD = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.modules.activation.GELU"}


DENSE = "2_Dense/config.json"
SCORING = GOOD | {"out_features": 1, "module_output_name": "scores"}


@pytest.mark.parametrize("path", ["models", "base.modules.dense", "sentence_transformer.modules.dense"])
def test_dense_layers_are_read_by_any_versions_path(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", "Dense")
    modules = json.loads((folder / "modules.json").read_text())
    modules[2]["type"] = f"sentence_transformers.{path}.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(GOOD))
    assert read_pooling(folder).layers == (Layer("Dense", "2_Dense", 32, 8, bias=False, activation="GELU"),)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"activation_function": "torch.nn.modules.activation.GLU"}, CheckpointUnsupported),
        ({"activation_function": "mine.Tanh"}, CheckpointUnsupported),
        ({"activation_function": "torch.nn.functional.gelu"}, CheckpointUnsupported),
        ({"module_input_name": "token_embeddings"}, CheckpointUnsupported),
        ({"module_output_name": "scores"}, CheckpointUnsupported),
        ({"in_features": "32"}, CheckpointCorrupt),
        ({"out_features": 0}, CheckpointCorrupt),
        ({"out_features": True}, CheckpointCorrupt),
    ],
)
def test_dense_layers_that_the_graph_has_not_are_refused(
    tmp_path: Path, changes: dict[str, Any], kind: type[SourceError]
) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", "Dense")
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(GOOD | changes))
    refused(folder, kind)


def test_layers_that_do_not_fit_are_corrupt() -> None:
    with pytest.raises(CheckpointCorrupt, match="16 values, and gets 32"):
        Pooling(layers=(Layer("Dense", "2_Dense", 16, 8),)).width(32)


@pytest.mark.parametrize(
    "content",
    ["", "{", "{}x", "null", "5", '"text"', "[1]", "[{}]", '[{"type": "a"}]', '[{"type": "a", "path": "\\u0000"}]',
     "[" * 50_000],
    ids=lambda content: content[:20],
)  # fmt: skip
def test_modules_that_are_no_list_are_corrupt(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    refused(tmp_path, CheckpointCorrupt)


@pytest.mark.parametrize("path", ["..", "/etc", "1_Pooling/../../x"])
def test_a_module_outside_the_folder_is_unsafe(tmp_path: Path, path: str) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))
    refused(folder, CheckpointUnsafe)


def test_a_missing_pooling_config_is_corrupt(tmp_path: Path) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    (folder / "1_Pooling" / "config.json").unlink()
    refused(folder, CheckpointCorrupt)


@pytest.mark.parametrize(
    ("kind", "content", "length"),
    [
        *((kind, '{"max_seq_length": 128}', 128) for kind in ("bert", "roberta", "xlm-roberta")),
        *(("bert", content, None) for content in ("{}", '{"max_seq_length": "128"}', '{"max_seq_length": 0}')),
        ("unread", '{"max_seq_length": 128}', None),
    ],
)
def test_the_trained_length_is_read(tmp_path: Path, kind: str, content: str, length: int | None) -> None:
    (tmp_path / f"sentence_{kind}_config.json").write_text(content)
    assert read_max_length(tmp_path) is None  # as in the library, which saves it with modules.json only
    assert read_max_length(write(tmp_path, "Transformer", "Pooling")) == length


@pytest.mark.parametrize(
    ("config", "pooling", "prompts"),
    [
        ({}, Pooling(), None),
        ({"prompts": {"query": "", "document": None}}, Pooling(), None),
        ({}, Pooling(pools_prompt=False), Prompts({"query": "", "document": ""}, "")),
        ({"prompts": {"a": "b"}}, Pooling(), Prompts({"query": "", "document": "", "a": "b"}, "")),
        ({"prompts": {"a": "b"}, "default_prompt_name": "a"}, None, Prompts({"a": "b"}, "b")),
        ({"prompts": None, "default_prompt_name": None}, None, None),
    ],
)
def test_prompts_and_their_default_are_read(
    tmp_path: Path, config: dict[str, Any], pooling: Pooling | None, prompts: Prompts | None
) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    (folder / LIBRARY).write_text(json.dumps(config))
    names = () if pooling is None else EMBEDDERS_PROMPTS
    assert read_prompts(folder, names, pooling is not None and not pooling.pools_prompt) == prompts
    (folder / "modules.json").unlink()  # the library then reads no prompts
    assert read_prompts(folder, EMBEDDERS_PROMPTS) is None


@pytest.mark.parametrize(
    "config", [{"prompts": ["a"]}, {"prompts": {"a": 1}}, {"default_prompt_name": "a"}, {"default_prompt_name": ["a"]}]
)
def test_prompts_that_are_no_texts_by_name_are_corrupt(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = write(tmp_path, "Transformer", "Pooling")
    (folder / LIBRARY).write_text(json.dumps(config))
    with pytest.raises(CheckpointCorrupt, match="prompts"):
        read_prompts(folder, EMBEDDERS_PROMPTS)


# Cross-encoders


def test_modular_cross_encoders_end_with_scores(tmp_path: Path) -> None:
    folder = write(tmp_path, "Transformer", "Pooling", "Dense")
    (folder / "2_Dense").mkdir()
    (folder / DENSE).write_text(json.dumps(SCORING))
    layer = Layer("Dense", "2_Dense", 32, 1, bias=False, activation="GELU")
    assert read_scoring(folder) == Pooling(layers=(layer,))
    (folder / "modules.json").unlink()
    assert read_scoring(folder) is None


IDENTITY, SIGMOID, TANH = "torch.nn.modules.linear.Identity", "torch.nn.Sigmoid", "torch.nn.modules.activation.Tanh"


@pytest.mark.parametrize(
    ("config", "files", "is_marked", "activation"),
    [
        ({}, {}, False, "sigmoid"),
        ({OLD: None}, {}, False, "sigmoid"),
        ({OLD: IDENTITY}, {}, True, "none"),
        ({NEW: {"activation_fn": SIGMOID, "version": "5.0.0"}, OLD: IDENTITY}, {}, True, "sigmoid"),
        ({NEW: {"version": "5.0.0"}}, {LIBRARY: {"model_type": "CrossEncoder"}}, True, "sigmoid"),
        ({}, {LIBRARY: {"model_type": "SentenceTransformer"}}, False, "sigmoid"),
        ({NEW: {"activation_fn": SIGMOID}}, {LIBRARY: {"activation_fn": IDENTITY}}, True, "none"),
    ],
)
def test_the_activation_is_read_as_cross_encoder_reads_it(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], is_marked: bool, activation: str
) -> None:
    write(tmp_path, "Transformer")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert is_cross_encoder(tmp_path, config) is is_marked
    assert read_activation(tmp_path, config) == activation
    if not is_marked:
        assert read_activation(tmp_path, config, labels=3) == "none"


def test_several_scores_may_be_softmaxed(tmp_path: Path) -> None:
    config = {OLD: "torch.nn.modules.activation.Softmax"}
    assert read_activation(tmp_path, config, labels=3) == "softmax"
    with pytest.raises(CheckpointUnsupported, match="Softmax"):
        read_activation(tmp_path, config)


@pytest.mark.parametrize(
    ("kinds", "config", "files"),
    [
        ("Transformer", {OLD: TANH}, {}),
        ("Transformer", {NEW: {"activation_fn": "mine.Squash"}}, {}),
        ("Transformer LogitScore", {}, {}),
        ("Transformer Pooling", {}, {}),
        ("Transformer Pooling Dense", {}, {DENSE: GOOD}),
        ("Transformer Pooling Dense Normalize", {}, {DENSE: GOOD | {"module_output_name": "scores"}}),
        ("Transformer Pooling LayerNorm", {}, {"2_LayerNorm/config.json": {"dimension": 1}}),
        ("Transformer Pooling Dense", {}, {DENSE: SCORING, POOLING: {"include_prompt": False}}),
        ("Transformer", {}, {BERT_CONFIG: {"processing_kwargs": {"text": {"max_length": 9}}}}),
        ("Transformer", {}, {BERT_CONFIG: {"modality_config": {"text": {"method": "forward"}}}}),
    ],
)
def test_scores_that_the_graph_has_not_are_unsupported(
    tmp_path: Path, kinds: str, config: dict[str, Any], files: dict[str, Any]
) -> None:
    write(tmp_path, *kinds.split())
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(content))

    def read() -> None:
        read_scoring(tmp_path)
        read_activation(tmp_path, config)

    with pytest.raises(CheckpointUnsupported) as caught:
        read()
    assert str(tmp_path) in caught.value.message and caught.value.fix
