"""Whether a compiled OpenVINO model is the one that engine.json describes: its inputs, outputs and sizes.

A model of another size would read and write beyond its rows. Owns the names that runners feed and read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from .errors import ModelDamaged
from .paged_attention import CROSS, LONGEST, PREFIXES, SELF, VECTORS
from .spec import EngineSpec

TOKENS = frozenset({"input_ids", "position_ids"})
LAST = "last"
CHOICES = frozenset({"next_ids", "logits"})

Shapes = Mapping[str, tuple[int, ...]]


def check_model(path: Path, spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> None:
    """Raise ModelDamaged unless inputs and outputs have the names and shapes of what `path` is in `spec`."""
    assert spec.openvino is not None
    wrong = _wrong_encoder(spec, inputs, outputs) if path == spec.openvino.encoder else _wrong(spec, inputs, outputs)
    if wrong:
        raise ModelDamaged(f"{path} is not the model that engine.json describes: {wrong}", "Export the model again")


def _wrong(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    pages = TOKENS | _pages(SELF, spec.layers)
    allowed: list[Collection[str]] = [pages | {LAST}]
    if spec.has_encoder:
        last = {f"cross_{part}_last.{layer}" for part in "kv" for layer in range(spec.layers)}
        rows = {f"past_{part}_{layer}" for part in "kv" for layer in range(spec.layers)}
        source = _pages(CROSS, spec.layers) | last
        allowed = [pages | source, TOKENS | rows | source]
    if set(inputs) not in allowed:
        return f"it has the inputs {', '.join(sorted(inputs))}"
    if not set(outputs) >= CHOICES:
        return f"it has the outputs {', '.join(sorted(outputs))}"
    columns = outputs["logits"][-1]
    return "" if columns >= spec.vocab_size else f"it has logits of {columns} tokens, not {spec.vocab_size}"


def _wrong_encoder(spec: EngineSpec, inputs: Shapes, outputs: Shapes) -> str:
    if set(inputs) != {"input_ids", "lengths"} or set(outputs) != {f"cross_{layer}" for layer in range(spec.layers)}:
        return f"it has the inputs {', '.join(sorted(inputs))} and the outputs {', '.join(sorted(outputs))}"
    for name, (_, parts, heads, _, head_dim) in outputs.items():
        if (parts, heads, head_dim) != (2, spec.heads, spec.head_dim):
            return f"{name} has {parts} x {heads} heads of {head_dim}"
    return ""


def _pages(kind: str, layers: int) -> frozenset[str]:
    prefix = PREFIXES[kind]
    caches = {f"{prefix}{part}_cache.{layer}" for part in ("key", "value") for layer in range(layers)}
    return frozenset(caches | {prefix + name for name in (*VECTORS, LONGEST)})
