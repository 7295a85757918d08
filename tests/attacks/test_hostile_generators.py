"""Generators with missing, extra or misshapen tensors, or with invalid configs, are refused by name."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.families import find_family
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from tests.attacks.damage import DROPPED, edit_json, edit_tensors, pickle_weights, refused
from tests.attacks.test_hostile_weights import Malice
from tests.rigs.checkpoints import tiny_generators

FAMILIES = ("gpt2", "llama", "bart", "t5")
Tensors = dict[str, Any]
Copy = Callable[[str], Path]

# A tensor of each family that is read by slices, as it is, joined with others, or both.
READ = {
    "gpt2": ("transformer.wte.weight", "transformer.h.1.attn.c_attn.weight", "transformer.ln_f.bias"),
    "llama": (
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.up_proj.weight",
    ),
    "gemma": (
        "model.layers.1.pre_feedforward_layernorm.weight",
        "model.layers.2.post_feedforward_layernorm.weight",
        "model.layers.0.self_attn.k_norm.weight",
    ),
    "neox": ("gpt_neox.layers.1.attention.query_key_value.weight", "gpt_neox.embed_in.weight"),
    "opt-narrow": ("model.decoder.project_in.weight", "model.decoder.embed_positions.weight"),
    "qwen3": ("model.layers.1.self_attn.q_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
    "bart": ("model.shared.weight", "model.decoder.layers.1.encoder_attn.k_proj.bias", "final_logits_bias"),
    "t5": (
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.block.0.layer.1.DenseReluDense.wo.weight",
        "decoder.final_layer_norm.weight",
    ),
}
EACH_TENSOR = [(family, name) for family, names in READ.items() for name in names]


@pytest.fixture(scope="session")
def generators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound checkpoint of each family."""
    folder = tmp_path_factory.mktemp("generators")
    others = ("gemma", "marian-unshared", "mistral", "neox", "opt", "opt-narrow", "qwen2", "qwen3", "smollm")
    for family in (*FAMILIES, *others):
        tiny_generators.save(folder / family, tiny_generators.build(family))
    return folder


@pytest.fixture
def copy(generators: Path, tmp_path: Path) -> Copy:
    return lambda family: Path(shutil.copytree(generators / family, tmp_path / family))


def build(folder: Path) -> None:
    checkpoint = tiny_generators.checkpoint(folder)
    find_family(checkpoint)
    write_engine_folder(checkpoint, folder / "engine", FORMATS["int8"], 127)


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, name in EACH_TENSOR if name != "final_logits_bias"]
)
def test_a_missing_tensor_is_named(copy: Copy, family: str, name: str) -> None:
    folder = copy(family)
    edit_tensors(folder, lambda tensors: {key: t for key, t in tensors.items() if key != name})
    message = refused(CheckpointCorrupt, name, lambda: build(folder))
    assert "lacks tensors" in message and "model.safetensors" in message
    assert not (folder / "engine").exists()


@pytest.mark.parametrize(("family", "name"), EACH_TENSOR)
def test_a_tensor_of_another_shape_is_named_with_both_shapes(copy: Copy, family: str, name: str) -> None:
    folder = copy(family)
    shape = list(tiny_generators.build(family).state_dict()[name].shape)
    edit_tensors(folder, lambda tensors: tensors | {name: tensors[name][..., :-1].contiguous()})
    message = refused(CheckpointCorrupt, name, lambda: build(folder))
    assert f"not {shape}" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("family", "name"), EACH_TENSOR)
def test_weights_that_are_not_finite_are_named(copy: Copy, family: str, name: str, value: float) -> None:
    folder = copy(family)

    def poison(tensors: Tensors) -> Tensors:
        tensors[name].view(-1)[-1] = value
        return tensors

    edit_tensors(folder, poison)
    refused(CheckpointCorrupt, name, lambda: build(folder))


def test_integer_tensors_are_refused_as_weights(copy: Copy) -> None:
    folder = copy("gpt2")
    edit_tensors(folder, lambda tensors: {key: tensor.int() for key, tensor in tensors.items()})
    refused(CheckpointCorrupt, "I32", lambda: build(folder))


def test_a_shard_that_lacks_what_the_index_promises_is_named(copy: Copy) -> None:
    folder = copy("gpt2")
    model = tiny_generators.build("gpt2")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="40KB")
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    from safetensors.torch import load_file, save_file

    tensors = load_file(shard)
    gone = tensors.popitem()[0]
    save_file(tensors, shard, metadata={"format": "pt"})
    refused(CheckpointCorrupt, gone, lambda: build(folder))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_pickle_of_a_generator_is_corrupt(copy: Copy, zipped: bool) -> None:
    folder = copy("gpt2")
    file = pickle_weights(folder, lambda tensors: tensors, _use_new_zipfile_serialization=zipped)
    content = file.read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:size])
        refused(CheckpointCorrupt, file, lambda: build(folder))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_for_a_generator(copy: Copy, tmp_path: Path, zipped: bool) -> None:
    folder, marker = copy("gpt2"), tmp_path / "ran"
    options = {"_use_new_zipfile_serialization": zipped}
    pickle_weights(folder, lambda tensors: tensors | {"x": Malice(marker)}, **options)
    refused(CheckpointUnsafe, "pytorch_model.bin", lambda: build(folder))
    assert not marker.exists()


@pytest.mark.parametrize("content", [[1, 2], {}, {"a": "text"}, {"a": {"b": 1}}, {1: 2}])
def test_a_pickle_without_tensors_is_corrupt(copy: Copy, content: Any) -> None:
    folder = copy("gpt2")
    pickle_weights(folder, lambda tensors: content)
    refused(CheckpointCorrupt, "pytorch_model.bin", lambda: build(folder))


# Field -> values that can't be meant.
CORRUPT: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "n_head": (0, -1, 5, "3", 2.5, True),
        "activation_function": (3,),
        "n_layer": (0, -2, 10**9, "2"),
        "n_embd": (0, -48, "48"),
        "n_inner": (0, "many"),
        "layer_norm_epsilon": (0, -1, "small"),
        "scale_attn_weights": ("yes", 1),
        "tie_word_embeddings": ("no",),
    },
    "llama": {
        "num_key_value_heads": (0, -1, 4, 12, "3"),
        "head_dim": (0, -16, 1.5),
        "rms_norm_eps": (0, "small"),
        "attention_bias": ("yes",),
        "mlp_bias": (2,),
        "max_position_embeddings": (0, 10**9),
    },
    "gemma": {
        "query_pre_attn_scalar": (0, "10", -4),
        "sliding_window": (0, "9", None),
        "hidden_activation": (3,),
    },
    "neox": {
        "num_attention_heads": (0, "3"),
        "use_parallel_residual": ("yes", 1),
        "layer_norm_eps": (0,),
        "max_position_embeddings": (0,),
    },
    "opt": {
        "num_attention_heads": (0, 5, "6"),
        "ffn_dim": (0, -1),
        "do_layer_norm_before": ("yes",),
        "word_embed_proj_dim": (0, "24"),
        "layer_norm_elementwise_affine": (0,),
    },
    "mistral": {"sliding_window": (0, -1, "7", 2.5, True), "head_dim": (0, "16")},
    "qwen3": {"attention_bias": ("yes",), "rms_norm_eps": (0,)},
    "bart": {
        "encoder_attention_heads": (0, 5, "6"),
        "decoder_ffn_dim": (0, -1),
        "scale_embedding": ("yes",),
        "max_position_embeddings": (0,),
    },
    "t5": {
        "num_heads": (0, "5"),
        "d_kv": (0, -8),
        "d_ff": (0,),
        "relative_attention_num_buckets": (0, -1, 1, 3),
        "relative_attention_max_distance": (0, 4, 10**8),
        "layer_norm_epsilon": (0,),
    },
}
CORRUPT_CASES = [
    (family, field, v) for family, fields in CORRUPT.items() for field, values in fields.items() for v in values
]


@pytest.mark.parametrize(("family", "field", "value"), CORRUPT_CASES)
def test_an_invalid_config_field_is_named(copy: Copy, family: str, field: str, value: Any) -> None:
    folder = copy(family)
    edit_json(folder / "config.json", **{field: value})
    refused(CheckpointCorrupt, field, lambda: build(folder))


WINDOW = {"use_sliding_window": True, "sliding_window": 32}
UNSCALABLE: tuple[dict[str, Any], ...] = (
    {"rope_type": "proportional", "partial_rotary_factor": 1.0},
    {"rope_type": "imagined", "factor": 2.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 2.0,
     "original_max_position_embeddings": 40},
)  # fmt: skip
# Fields that mean another net: sizes that the attention doesn't take, functions and switches without a block.
UNSUPPORTED: list[tuple[str, dict[str, Any], str]] = [
    ("gpt2", {"n_head": 4, "n_embd": 48}, "n_embd / n_head"),
    ("gpt2", {"activation_function": "mish"}, "activation_function"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("llama", {"hidden_act": "tanh"}, "hidden_act"),
    ("llama", {"head_dim": 24}, "head_dim"),
    ("llama", {"sliding_window": 32}, "sliding_window"),
    *(("llama", {"rope_parameters": DROPPED, "rope_scaling": each}, each["rope_type"]) for each in UNSCALABLE),
    ("llama", {"rope_parameters": DROPPED, "partial_rotary_factor": 0.5}, "0.5 of each head"),
    ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ("llama", {"layer_types": ["full_attention", "sliding_attention"], **WINDOW}, "sliding_window"),
    ("llama", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ("mistral", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    ("llama", {"max_position_embeddings": 4_194_304}, "is 4194304, which can't be exported"),
    ("gemma", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("gemma", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma", {"hidden_activation": "mish"}, "hidden_activation"),
    ("smollm", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("smollm", {"no_rope_layers": [1, 2, 0]}, "no_rope_layers"),
    ("neox", {"hidden_act": "mish"}, "hidden_act"),
    ("neox", {"num_attention_heads": 6}, "num_attention_heads"),
    ("opt", {"activation_function": "selu"}, "activation_function"),
    ("opt", {"_remove_final_layer_norm": True}, "_remove_final_layer_norm"),
    ("bart", {"activation_function": "tanh"}, "activation_function"),
    ("bart", {"decoder_attention_heads": 4}, "d_model / decoder_attention_heads"),
    ("marian-unshared", {"decoder_vocab_size": 100}, "decoder_vocab_size"),
    ("t5", {"d_kv": 12}, "d_kv"),
    ("t5", {"feed_forward_proj": "gated-tanh", "dense_act_fn": DROPPED}, "dense_act_fn"),
]


@pytest.mark.parametrize(("family", "fields", "named"), UNSUPPORTED, ids=[named for _, _, named in UNSUPPORTED])
def test_a_config_that_the_engine_has_no_blocks_for_is_unsupported(
    copy: Copy, family: str, fields: dict[str, Any], named: str
) -> None:
    folder = copy(family)
    edit_json(folder / "config.json", **fields)
    refused(CheckpointUnsupported, named, lambda: build(folder))


@pytest.mark.parametrize(
    ("family", "field"), [("gpt2", "n_embd"), ("llama", "intermediate_size"), ("bart", "d_model"), ("t5", "d_model")]
)
def test_a_config_of_another_size_is_refused_before_memory_is_taken(copy: Copy, family: str, field: str) -> None:
    folder = copy(family)
    edit_json(folder / "config.json", **{field: 480_000})
    refused(CheckpointCorrupt, "config.json says", lambda: build(folder))


@pytest.mark.parametrize("theta", [0, -1, "far", None, float("nan")])
def test_an_invalid_rope_theta_is_named(copy: Copy, theta: Any) -> None:
    folder = copy("llama")
    edit_json(folder / "config.json", rope_parameters={"rope_type": "default", "rope_theta": theta})
    refused(CheckpointCorrupt, "rope_theta", lambda: build(folder))


LLAMA3 = tiny_generators.ROTARY["llama3"] | {"rope_type": "llama3"}
LONGROPE = tiny_generators.ROTARY["longrope"] | {"rope_type": "longrope"}
YARN = tiny_generators.ROTARY["yarn"] | {"rope_type": "yarn"}


@pytest.mark.parametrize(
    "fields",
    [
        LLAMA3 | {"factor": 0},
        LLAMA3 | {"low_freq_factor": -1.0},
        LLAMA3 | {"high_freq_factor": 1.0, "original_max_position_embeddings": 2 * math.pi},  # of a wave of this length
        YARN | {"factor": float("inf")},
        YARN | {"attention_factor": float("nan")},
        YARN | {"beta_fast": "fast"},
        YARN | {"rope_theta": 1.0},
        YARN | {"original_max_position_embeddings": -5},
        LONGROPE | {"short_factor": [1.0, 2.0]},
        LONGROPE | {"short_factor": [0.0] * 8},
        LONGROPE | {"short_factor": "short"},
        LONGROPE | {"original_max_position_embeddings": 99.5},
        {"rope_type": "linear", "factor": "many"},
        {"rope_type": "linear"},
        {"rope_type": ["linear"], "factor": 2.0},
        "linear",
    ],
    ids=str,
)  # fmt: skip
def test_invalid_rope_scaling_parameters_are_refused(copy: Copy, fields: Any) -> None:
    folder = copy("llama")
    edit_json(folder / "config.json", rope_parameters=fields)
    with pytest.raises((CheckpointCorrupt, CheckpointUnsupported), match=r"config\.json") as caught:
        build(folder)
    assert caught.value.fix


def test_scales_are_read_where_transformers_4_wrote_them(copy: Copy) -> None:
    folder = copy("llama")
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    build(folder)
    plain = (folder / "engine" / "weights.bin").read_bytes()
    tables = []
    for fields in ({"rope_scaling": scaling, "rope_theta": 500.0}, {"rope_parameters": LLAMA3}):
        edit_json(folder / "config.json", **{"rope_parameters": DROPPED, "rope_scaling": DROPPED} | fields)
        build(folder)
        tables.append((folder / "engine" / "weights.bin").read_bytes())
    assert tables[0] == tables[1] != plain


def test_a_gemma_of_transformers_4_has_the_positions_and_windows_of_one_of_5(tmp_path: Path) -> None:
    tiny_generators.save(tmp_path, tiny_generators.build("gemma-linear"))
    content = []
    old = {"rope_theta": 700.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    old |= {"rope_parameters": DROPPED, "layer_types": DROPPED, "sliding_window_pattern": 2}
    for fields in ({}, old | {"transformers_version": "4.57.0"}):
        edit_json(tmp_path / "config.json", **fields)
        build(tmp_path)
        engine = tmp_path / "engine"
        content.append((engine.joinpath("weights.bin").read_bytes(), engine.joinpath("decoder.onnx").read_bytes()))
    assert content[0] == content[1]


@pytest.mark.parametrize("share", [0, -0.5, 1.5, 0.01, "half", None, float("nan")])
def test_an_invalid_partial_rotary_factor_is_named(copy: Copy, share: Any) -> None:
    folder = copy("neox")
    fields = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": share}
    edit_json(folder / "config.json", rope_parameters=fields)
    refused(CheckpointCorrupt, "partial_rotary_factor", lambda: build(folder))


@pytest.mark.parametrize("name", ["pegasus", "marian", "m2m"])
def test_too_many_positions_to_compute_are_refused(tmp_path: Path, name: str) -> None:
    tiny_generators.save(tmp_path, tiny_generators.build(name))
    edit_json(tmp_path / "config.json", max_position_embeddings=10**8)
    edit_tensors(tmp_path, lambda tensors: {k: t for k, t in tensors.items() if "embed_positions" not in k})
    refused(CheckpointCorrupt, "max_position_embeddings", lambda: build(tmp_path))
