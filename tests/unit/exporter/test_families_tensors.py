"""Reading of a checkpoint's tensors: shards, pickles, half precision, tied copies, and models without a head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.errors import CheckpointUnsupported
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from hfx.exporter.tensors import CheckpointTensors
from tests.attacks.damage import edit_json, edit_tensors
from tests.rigs.checkpoints import tiny_generators


def weights(folder: Path, checkpoint: Any) -> bytes:
    write_engine_folder(checkpoint, folder, FORMATS["fp32"], 127)
    return (folder / "weights.bin").read_bytes()


@pytest.fixture(scope="module")
def bart() -> Any:
    return tiny_generators.build("bart")


@pytest.fixture(scope="module")
def want(bart: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weight file of the BART from one safetensors file."""
    folder = tmp_path_factory.mktemp("bart")
    return weights(folder / "engine", tiny_generators.save(folder, bart))


def test_shards_give_what_one_file_gives(tmp_path: Path, bart: Any, want: bytes) -> None:
    checkpoint = tiny_generators.save(tmp_path, bart, max_shard_size="20KB")
    assert len(checkpoint.weights) > 2
    assert weights(tmp_path / "engine", checkpoint) == want


@pytest.mark.parametrize("zipped", [True, False], ids=["mapped", "from before torch 1.6"])
def test_pickles_give_what_safetensors_give(tmp_path: Path, bart: Any, want: bytes, zipped: bool) -> None:
    import torch

    tiny_generators.save(tmp_path, bart)
    (tmp_path / "model.safetensors").unlink()
    # All of the tied copies, as torch itself saves them.
    torch.save(bart.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert weights(tmp_path / "engine", tiny_generators.checkpoint(tmp_path)) == want


@pytest.mark.parametrize("kept", ["model.encoder.embed_tokens.weight", "lm_head.weight"])
def test_a_tied_table_is_found_under_any_of_its_names(tmp_path: Path, bart: Any, want: bytes, kept: str) -> None:
    def rename(tensors: dict[str, Any]) -> dict[str, Any]:
        return {kept if name == "model.shared.weight" else name: tensor for name, tensor in tensors.items()}

    tiny_generators.save(tmp_path, bart)
    edit_tensors(tmp_path, rename)
    assert len(weights(tmp_path / "engine", tiny_generators.checkpoint(tmp_path))) == len(want)


@pytest.mark.parametrize(
    ("name", "shared", "own"),
    [
        ("bart", "model.shared.weight", "model.decoder.embed_tokens.weight"),
        ("t5", "shared.weight", "encoder.embed_tokens.weight"),
    ],
)
def test_a_table_beside_the_shared_one_is_refused_if_transformers_5_would_use_it(
    tmp_path: Path, name: str, shared: str, own: str
) -> None:
    tiny_generators.save(tmp_path, tiny_generators.build(name))
    edit_tensors(tmp_path, lambda tensors: tensors | {own: tensors[shared] * 2})
    with pytest.raises(CheckpointUnsupported, match=f"{own} and {shared}"):
        weights(tmp_path / "engine", tiny_generators.checkpoint(tmp_path))
    edit_json(tmp_path / "config.json", transformers_version="4.57.6")
    assert weights(tmp_path / "engine", tiny_generators.checkpoint(tmp_path))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_floats_become_float32(tmp_path: Path, dtype: str) -> None:
    import torch

    kind = getattr(torch, dtype)
    model = tiny_generators.build("gpt2")
    checkpoint = tiny_generators.save(tmp_path, model.to(kind))
    tensors = CheckpointTensors(checkpoint)
    got = tensors.parameter("transformer.wte.weight", tiny_generators.VOCABULARY, 48).read()
    assert got.dtype == np.float32
    assert np.array_equal(got, model.transformer.wte.weight.detach().float().numpy())
    write_engine_folder(checkpoint, tmp_path / "engine", FORMATS["int8"], 127)


@pytest.mark.parametrize(("name", "root"), [("gpt2", "transformer."), ("bart", "model.")])
def test_a_checkpoint_of_the_bare_model_is_read(tmp_path: Path, name: str, root: str) -> None:
    def strip(tensors: dict[str, Any]) -> dict[str, Any]:
        return {key.removeprefix(root): tensor for key, tensor in tensors.items() if key != "final_logits_bias"}

    tiny_generators.save(tmp_path, tiny_generators.build(name))
    edit_tensors(tmp_path, strip)
    write_engine_folder(tiny_generators.checkpoint(tmp_path), tmp_path / "engine", FORMATS["fp32"], 127)


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("gpt2", {"transformer.h.0.attn.bias": (1, 1, 8, 8), "transformer.h.1.attn.masked_bias": ()}),
        ("gpt2", {"lm_head.weight": (120, 48)}),
        ("bart", {"lm_head.weight": (120, 48)}),
        ("m2m", {f"model.{side}.embed_positions.weights": (82, 48) for side in ("encoder", "decoder")}),
        ("t5", {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (8, 5)}),
        ("t5", {"lm_head.weight": (120, 48)}),
    ],
)
def test_tensors_that_transformers_computes_or_ties_are_accepted(
    tmp_path: Path, name: str, extra: dict[str, tuple[int, ...]]
) -> None:
    import torch

    tiny_generators.save(tmp_path, tiny_generators.build(name))
    edit_tensors(tmp_path, lambda tensors: tensors | {key: torch.ones(shape) for key, shape in extra.items()})
    write_engine_folder(tiny_generators.checkpoint(tmp_path), tmp_path / "engine", FORMATS["fp32"], 127)


def test_slices_of_transposed_tensors_are_read_correctly(tmp_path: Path) -> None:
    model = tiny_generators.build("gpt2")
    tensors = CheckpointTensors(tiny_generators.save(tmp_path, model))
    stored = model.transformer.h[0].attn.c_attn.weight.detach().numpy()
    turned = tensors.transposed("transformer.h.0.attn.c_attn.weight", 48, 144)
    assert turned.shape == (144, 48)
    assert np.array_equal(turned.take(10, 20), stored.T[10:20])
    assert np.array_equal(turned.rows(5, 50).take(1, 3), stored.T[6:8])
