"""Tables of rotary positions, for transformers' types of scaling that do not depend on the length of a text.

transformers' own functions compute the frequencies, in torch: at position 30,000, one bit of a frequency is an angle
of 0.002.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN
from hfx.exporter.families.family import Config
from hfx.exporter.graph.blocks import FloatArray, Parameter, Rotary

MOST_POSITIONS = 1 << 20  # the most rows of the tables of angles
ROTARY_STEP = 16  # GroupQueryAttention only rotates heads whose size is a multiple of this
ORIGINAL = "original_max_position_embeddings"
# Type -> the fields that must be numbers above 0, besides rope_theta. `dynamic` only scales beyond
# max_position_embeddings, and no text is longer.
TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "dynamic": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "longrope": (ORIGINAL,),
    "yarn": ("factor", ORIGINAL),
}


def stated_rotary(config: Config, kind: str | None = None) -> dict[str, Any]:
    """Return the config's fields of rotary positions; with `kind`, those of the layers of this kind.

    transformers 5 has one field with all of them, transformers 4 has two.
    """
    old = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    stated: dict[str, Any] = config.get("rope_parameters") or old
    return stated if kind is None else stated.get(kind) or {}


def read_positions(config: Config) -> int:
    """Return the number of positions in the tables."""
    positions = config.size("max_position_embeddings")
    if positions > MOST_POSITIONS:
        raise config.unsupported("max_position_embeddings", f"at most {MOST_POSITIONS}")
    return positions


def read_rotary(config: Config, stated: dict[str, Any], head_dim: int, positions: int, name: str = "rotary") -> Rotary:
    """Return the angles of `positions` positions, by the fields `stated`.

    Raises CheckpointUnsupported, which names the type of scaling.
    """
    share = stated.get("partial_rotary_factor")
    if share not in (None, 1):
        raise _unsupported(config, f"in {str(share)[:50]} of each head", "in whole heads")
    return _tables(name, *_frequencies(config, stated, head_dim, head_dim, positions), positions)


def read_partial_rotary(
    config: Config, stated: dict[str, Any], head_dim: int, positions: int
) -> tuple[Rotary, NDArray[np.int64]]:
    """Return the angles as `read_rotary` does, if only the first channels of heads may be turned, and an order.

    The channels of Q and K must be put in this order. It pairs the other channels with each other, with angles of 0.
    Scores don't depend on the order of channels.
    """
    share = replace(config, values=stated).positive("partial_rotary_factor")
    turned = int(head_dim * share)
    if not 0 < turned <= head_dim:
        raise CheckpointCorrupt(f"partial_rotary_factor in {config.file} is {share}; it should be at most 1.", AGAIN)
    frequencies, scales = _frequencies(config, stated, head_dim, turned, positions)
    pairs, rest = len(frequencies), head_dim // 2 - len(frequencies)
    frequencies, scales = np.pad(frequencies, (0, rest)), np.pad(scales, (0, rest), constant_values=1)
    parts = np.split(np.arange(head_dim), np.cumsum([pairs, pairs, rest]))
    return _tables("rotary", frequencies, scales, positions), np.concatenate([parts[at] for at in (0, 2, 1, 3)])


def _tables(name: str, frequencies: FloatArray, scales: FloatArray, positions: int) -> Rotary:
    def angles(start: int, stop: int) -> FloatArray:
        return np.arange(start, stop, dtype=np.float32)[:, None] * frequencies

    shape = (positions, len(frequencies))
    return Rotary(
        Parameter(name + ".cos", shape, lambda start, stop: np.cos(angles(start, stop)) * scales),
        Parameter(name + ".sin", shape, lambda start, stop: np.sin(angles(start, stop)) * scales),
    )


def _frequencies(
    config: Config, stated: dict[str, Any], head_dim: int, turned: int, positions: int
) -> tuple[FloatArray, FloatArray]:
    """Return the angle of each pair of the `turned` channels at position 1, and the factor of its cosine and sine."""
    import torch

    kind, fields = str(stated.get("rope_type") or stated.get("type") or "default"), replace(config, values=stated)
    if kind not in TYPES:
        raise _unsupported(config, f"of the type {kind[:50]!r}", f"of the types {', '.join(TYPES)}")
    theta = fields.positive("rope_theta")
    for field in TYPES[kind]:
        fields.positive(field)
    if kind == "longrope" and positions > fields.size(ORIGINAL):
        raise _unsupported(
            config,
            f"of the type 'longrope' that change once a text is longer than {fields.size(ORIGINAL)} tokens",
            f"of this type where max_position_embeddings is no more than {ORIGINAL}",
        )
    if kind in ("default", "dynamic"):
        shares = torch.arange(0, turned, 2, dtype=torch.float32) / turned
        return (1.0 / theta**shares).numpy(), np.ones(len(shares), np.float32)
    found, scale = _scaled(config, kind, stated, head_dim, positions)
    if found.shape != (-(-turned // 2),) or not np.isfinite(found).all() or not math.isfinite(scale):
        raise _not_computed(config, stated)
    return found, np.full(len(found), scale, np.float32)


def _scaled(
    config: Config, kind: str, stated: dict[str, Any], head_dim: int, positions: int
) -> tuple[FloatArray, float]:
    """Return the frequencies and the factor that transformers' function for `kind` computes."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    read: Any = SimpleNamespace(
        rope_parameters=stated,
        standardize_rope_params=lambda: None,
        max_position_embeddings=positions,
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
    )
    try:
        found, scale = ROPE_INIT_FUNCTIONS[kind](read, "cpu")
        return found.numpy(), float(scale)
    except (TypeError, ValueError, KeyError, ArithmeticError, RuntimeError) as error:
        raise _not_computed(config, stated) from error


def _not_computed(config: Config, stated: dict[str, Any]) -> CheckpointCorrupt:
    shown = str(dict(stated))[:200]
    return CheckpointCorrupt(f"The rotary positions in {config.file} can't be computed: {shown}.", AGAIN)


def _unsupported(config: Config, what: str, exported: str) -> CheckpointUnsupported:
    return CheckpointUnsupported(
        f"Rotary positions {what} ({config.file}) can't be exported.",
        f"hfx exports models whose rotary positions are {exported}.",
    )
