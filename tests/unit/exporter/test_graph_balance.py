"""Nets with an outlier channel: balancing changes only the rounding to 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.families import find_family
from hfx.exporter.families.family import resolve_config
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.graph.blocks import Linear, Net, constant
from hfx.exporter.graph.reference import linear, run_net
from hfx.exporter.quantize.balance import balanced, best_factors
from hfx.exporter.quantize.generator import FORMATS, int8_rows
from hfx.exporter.tensors import CheckpointTensors
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import graph_rows
from tests.rigs.machine.processors import LEVELS

LOUD = 7  # the channel
GENERATOR = np.random.default_rng(0)
IDS = GENERATOR.integers(3, tiny_generators.VOCABULARY, (4, 10))
SOURCE = GENERATOR.integers(3, tiny_generators.VOCABULARY, (4, 14))
# Ends of the names of what writes into the residual stream and of what reads it, with the axis of the hidden channels.
WRITERS = {
    "gpt2": ((".c_proj.weight", 1),),
    "llama": (("o_proj.weight", 0), ("down_proj.weight", 0)),
    "gemma": (("post_attention_layernorm.weight", 0), ("post_feedforward_layernorm.weight", 0)),
    "neox": (("dense.weight", 0), ("4h_to_h.weight", 0)),
    "opt": (("out_proj.weight", 0), ("fc2.weight", 0)),
    "mbart": (("out_proj.weight", 0), ("fc2.weight", 0)),
    "t5": (("Attention.o.weight", 0), ("wo.weight", 0)),
}
READERS = {
    "gpt2": (("c_attn.weight", 0), ("c_fc.weight", 0)),
    "llama": (("q_proj.weight", 1), ("gate_proj.weight", 1)),
    "gemma": (("q_proj.weight", 1), ("gate_proj.weight", 1)),
    "neox": (("query_key_value.weight", 1), ("h_to_4h.weight", 1)),
    "opt": (("q_proj.weight", 1), ("fc1.weight", 1)),
    "mbart": (("q_proj.weight", 1), ("fc1.weight", 1)),
    "t5": (("Attention.q.weight", 1), ("wi.weight", 1)),
}


def loud(name: str) -> Any:
    """Return the model `name` with one channel of its residual stream that is large in writers and small in readers."""
    import torch

    model = tiny_generators.build(name)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            for ends, factor in ((WRITERS[name], 100), (READERS[name], 0.1)):
                for end, axis in ends:
                    if key.endswith(end):
                        parameter.select(axis, LOUD).mul_(factor)
    return model


def read(folder: Path, model: Any) -> Net:
    checkpoint = tiny_generators.save(folder, model)
    return find_family(checkpoint).read(resolve_config(checkpoint), CheckpointTensors(checkpoint))


def logits(net: Net) -> NDArray[Any]:
    source = None if net.encoder is None else SOURCE
    hidden = run_net(net, IDS, source, lambda norm, output: None)
    return linear(hidden if net.head.projection is None else linear(hidden, net.head.projection), net.head.linear)


@pytest.mark.parametrize("name", tiny_generators.GENERATORS)
def test_blocks_read_by_numpy_are_the_model_in_torch(tmp_path: Path, name: str) -> None:
    import torch

    model = tiny_generators.build(name)
    net = read(tmp_path, model)
    ids = torch.from_numpy(IDS)
    with torch.no_grad():
        if net.encoder is None:
            want = model(ids).logits.numpy()
        else:
            want = model(input_ids=torch.from_numpy(SOURCE), decoder_input_ids=ids).logits.numpy()
    assert np.abs(logits(net) - want).max() <= 1e-5 * np.abs(want).max()


def test_decoder_only_layers_are_refused_in_an_encoder_decoder(tmp_path: Path) -> None:
    net, llama = read(tmp_path / "t5", tiny_generators.build("t5")), read(tmp_path, tiny_generators.build("llama"))
    with pytest.raises(ValueError, match="decoders alone"):
        replace(net, decoder=replace(net.decoder, layers=llama.decoder.layers))


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_balanced_net_is_the_same_function(tmp_path: Path, name: str, precision: str) -> None:
    net = read(tmp_path, loud(name))
    want, got = logits(net), logits(balanced(net, FORMATS[precision], 127, {}))
    assert np.abs(got - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize(("name", "precision"), [("gpt2", "fp32"), ("gpt2", "fp16"), ("bart", "int8")])
def test_nets_that_cannot_or_need_not_be_balanced_stay_as_they_are(tmp_path: Path, name: str, precision: str) -> None:
    net = read(tmp_path, tiny_generators.build(name))
    assert balanced(net, FORMATS[precision], 127, {}) is net


@pytest.mark.parametrize("name", WRITERS)
def test_a_channel_with_large_values_is_found(tmp_path: Path, name: str) -> None:
    assert LOUD in balanced(read(tmp_path, loud(name)), FORMATS["int8"], 127, {}).head.loud


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_a_head_with_outlier_channels_has_the_same_bits_in_any_batch(tmp_path: Path, name: str) -> None:
    write_engine_folder(tiny_generators.save(tmp_path, loud(name)), tmp_path / "engine", FORMATS["int8"], LEVELS)
    inputs, answers = (IDS if name == "gpt2" else SOURCE).tolist(), IDS.tolist()
    together = graph_rows.decoded(tmp_path / "engine", inputs, answers)
    for row in range(len(IDS)):
        own = slice(row, row + 1)
        alone = graph_rows.decoded(tmp_path / "engine", inputs[own], answers[own])
        assert np.array_equal(alone[0], together[row])


def test_the_same_checkpoint_gives_the_same_weights(tmp_path: Path) -> None:
    checkpoint = tiny_generators.save(tmp_path, loud("t5"))
    contents = []
    for name in ("first", "second"):
        write_engine_folder(checkpoint, tmp_path / name, FORMATS["int8"], 127)
        contents.append((tmp_path / name / "weights.bin").read_bytes())
    assert contents[0] == contents[1]


def test_balancing_scales_only_channels_that_8_bits_round_badly() -> None:
    rows = GENERATOR.standard_normal((64, 32)).astype(np.float32)
    weight = GENERATOR.standard_normal((40, 32)).astype(np.float32)
    assert np.abs(np.log2(factors(rows, weight))).max() < 0.5, "an even net stays about as it is"
    rows[:, LOUD] *= 50
    weight[:, LOUD] /= 50
    moved = factors(rows, weight)
    assert moved[LOUD] > 10 * np.delete(moved, LOUD).max()
    assert rounding(rows / moved, weight * moved) < 0.3 * rounding(rows, weight)
    weight[:, LOUD] *= 2500
    assert np.array_equal(factors(rows, weight), np.ones(32)), "the weights have no room for it"


def factors(rows: NDArray[Any], weight: NDArray[Any]) -> NDArray[Any]:
    return best_factors(rows, (Linear("l", constant("l.weight", weight)),), 127)


def rounding(rows: NDArray[Any], weight: NDArray[Any]) -> float:
    """Return the error of the product in int8."""
    (x, x_scale), (w, w_scale) = int8_rows(rows, 127), int8_rows(weight, 127)
    product = (x.astype(np.float32) @ w.T) * x_scale[:, None] * w_scale
    return float(np.linalg.norm(product - rows @ weight.T))
