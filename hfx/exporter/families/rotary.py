"""Tables of rotary positions, of each type of scaling that transformers has and that no text's length changes.

transformers' own functions compute the frequencies, in torch: at position 30,000, one bit of a frequency is an angle
of 0.002.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN
from hfx.exporter.families.family import Config
from hfx.exporter.graph.blocks import FloatArray, Parameter, Rotary

MOST_POSITIONS = 1 << 20  # rows of the tables of angles
ROTARY_STEP = 16  # GroupQueryAttention rotates heads of no other sizes
ORIGINAL = "original_max_position_embeddings"
# Type -> the fields that must be numbers above 0 beside rope_theta. `dynamic` scales beyond max_position_embeddings
# alone, where no text is.
TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "dynamic": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "longrope": (ORIGINAL,),
    "yarn": ("factor", ORIGINAL),
}


def stated_rotary(config: Config) -> dict[str, Any]:
    """What the config says of rotary positions: transformers 5 has all of it in one field, 4 in two."""
    old = {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})}
    stated: dict[str, Any] = config.get("rope_parameters") or old
    return stated


def read_positions(config: Config) -> int:
    """How many positions the tables have."""
    positions = config.size("max_position_embeddings")
    if positions > MOST_POSITIONS:
        raise config.unsupported("max_position_embeddings", f"at most {MOST_POSITIONS}")
    return positions


def read_rotary(config: Config, stated: dict[str, Any], head_dim: int, positions: int) -> Rotary:
    """The angles of `positions` positions, by the fields `stated`. CheckpointUnsupported names the type."""
    kind, share = str(stated.get("rope_type") or stated.get("type") or "default"), stated.get("partial_rotary_factor")
    if share not in (None, 1):
        raise _unsupported(config, f"in {str(share)[:50]} of each head", "in whole heads")
    if kind not in TYPES:
        raise _unsupported(config, f"of the type {kind[:50]!r}", f"of the types {', '.join(TYPES)}")
    frequencies, scale = _frequencies(config, kind, stated, head_dim, positions)

    def angles(start: int, stop: int) -> FloatArray:
        return np.arange(start, stop, dtype=np.float32)[:, None] * frequencies

    shape = (positions, head_dim // 2)
    return Rotary(
        Parameter("rotary.cos", shape, lambda start, stop: np.cos(angles(start, stop)) * scale),
        Parameter("rotary.sin", shape, lambda start, stop: np.sin(angles(start, stop)) * scale),
    )


def _frequencies(
    config: Config, kind: str, stated: dict[str, Any], head_dim: int, positions: int
) -> tuple[FloatArray, np.float32]:
    """The angle of each pair of channels at position 1, and what cosines and sines are multiplied by."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    fields = replace(config, values=stated)
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
        shares = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        return (1.0 / theta**shares).numpy(), np.float32(1)
    asked: Any = SimpleNamespace(
        rope_parameters=stated,
        standardize_rope_params=lambda: None,
        max_position_embeddings=positions,
        head_dim=head_dim,
        hidden_size=head_dim,
        num_attention_heads=1,
    )
    try:
        found, scale = ROPE_INIT_FUNCTIONS[kind](asked, "cpu")
        whole = tuple(found.shape) == (head_dim // 2,) and bool(found.isfinite().all()) and math.isfinite(scale)
    except (TypeError, ValueError, KeyError, ArithmeticError, RuntimeError):
        whole = False
    if not whole:
        shown = str(dict(stated))[:200]
        raise CheckpointCorrupt(f"The rotary positions in {config.file} can't be computed: {shown}.", AGAIN)
    return found.numpy(), np.float32(scale)


def _unsupported(config: Config, what: str, exported: str) -> CheckpointUnsupported:
    return CheckpointUnsupported(
        f"Rotary positions {what} ({config.file}) can't be exported.",
        f"hfx exports models whose rotary positions are {exported}.",
    )
