"""What a family of generators is, and its config.json: read with transformers' defaults, checked before it is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, whole_number
from hfx.exporter.graph.blocks import Activation, Embedding, Head, Kind, Linear, Net
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.exporter.transformers_versions import tied_and_scaled, written_by_4
from hfx.metadata import shown

LARGEST_SIZE = 100_000_000
MOST_LAYERS = 1_000
MOST_COMPUTED = 100_000  # rows of a table that is computed, so that no file of weights bounds it
HEAD_DIM_STEP = 8  # GroupQueryAttention takes no other head sizes
# Transformers' names of activation functions.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}


@dataclass(frozen=True)
class Config:
    """Typed access to a resolved config; every error names the field and the file.

    `tied`, `scaled`: whether the head is the table of embeddings, and whether a T5 scales what goes into it. Both as
    the version of transformers means it that wrote the file; `written_by_4` says which (transformers_versions.py).
    """

    file: Path
    values: dict[str, Any]
    tied: bool = True
    scaled: bool = False
    written_by_4: bool = False

    def get(self, field: str) -> Any:
        """The value as it is; None where there is none."""
        return self.values.get(field)

    def size(self, field: str, most: int = LARGEST_SIZE, least: int = 1) -> int:
        """A whole number from `least` to `most`."""
        return whole_number(self.file, self.values, field, most, least)

    def layers(self, field: str) -> int:
        """Read a field that must be a number of layers."""
        return self.size(field, MOST_LAYERS)

    def flag(self, field: str) -> bool:
        """Read a field that must be true or false."""
        value = self.values.get(field)
        if not isinstance(value, bool):
            raise self._corrupt(field, "true or false")
        return value

    def tied_head(self, tensors: CheckpointTensors, head: str, *tables: str) -> bool:
        """Whether the head is the table of embeddings, which is stored under one of the names `tables`.

        transformers 4 overwrites a `head` that is stored beside a tied table, 5 uses it where it differs.
        """
        return self.tied and (self.written_by_4 or not tensors.differ(head, *tables))

    def one_table(self, tensors: CheckpointTensors, *names: str) -> str:
        """The first of `names` that is stored, of a table of both stacks; transformers 5 uses others that differ."""
        name = tensors.first(*names)
        for other in names:
            if not self.written_by_4 and tensors.differ(other, name):
                raise CheckpointUnsupported(
                    f"{other} and {name} in {self.file.parent} differ, which can't be exported.",
                    "hfx exports such models with one table of embeddings; a BART with three needs "
                    "tie_word_embeddings: false.",
                )
        return name

    def ends(
        self,
        tensors: CheckpointTensors,
        width: int,
        *tables: str,
        heads: Sequence[str] = ("lm_head.weight",),
        scale: float = 1.0,
        projections: Sequence[Linear | None] = (None, None),
    ) -> tuple[Embedding, Head]:
        """The embedding, stored under one of the names `tables`, and the head, which may be the same table.

        The `projections` stand behind the embedding and before the head.
        """
        vocabulary, head = self.size("vocab_size"), tensors.first(*heads)
        tied = self.tied_head(tensors, head, *tables)
        table = tensors.parameter(self.one_table(tensors, *tables, *(heads if tied else ())), vocabulary, width)
        embedding = Embedding(tables[0].removesuffix(".weight"), table, scale, projections[0])
        weight = table if tied else tensors.parameter(head, vocabulary, width)
        return embedding, Head(Linear("lm_head", weight), embedding if tied else None, projection=projections[1])

    def positive(self, field: str) -> float:
        """A finite number above 0."""
        value = self.values.get(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self._corrupt(field, "a number above 0")
        return float(value)

    def activation(self, field: str) -> Activation:
        """An activation function that there is a block for."""
        value = self.values.get(field)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.unsupported(field, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def head_dim(self, width_field: str, heads_field: str) -> int:
        """width / heads, which must be a multiple of 8."""
        width, heads = self.size(width_field), self.divisor(heads_field, width_field)
        return self.checked_head_dim(width // heads, f"{width_field} / {heads_field}")

    def divisor(self, field: str, whole_field: str) -> int:
        """A number by which the one in `whole_field` can be divided."""
        whole, number = self.size(whole_field), self.size(field)
        if whole % number:
            raise self._corrupt(field, f"a divisor of {whole_field} ({whole})")
        return number

    def checked_head_dim(self, head_dim: int, source: str, step: int = HEAD_DIM_STEP) -> int:
        """`head_dim`, computed from the fields `source`, where attention can be run with it."""
        if head_dim % step:
            raise CheckpointUnsupported(
                f"{self.file}: heads of {head_dim} values ({source}) can't be exported.",
                f"hfx exports such models whose head size is a multiple of {step}.",
            )
        return head_dim

    def refuse(self, field: str, wanted: object) -> None:
        """Raise CheckpointUnsupported unless `field` is `wanted` (or absent)."""
        if self.values.get(field) not in (wanted, None):
            raise self.unsupported(field, repr(wanted))

    def unsupported(self, field: str, wanted: str) -> CheckpointUnsupported:
        """The error for a switch that changes the net into one that there are no blocks for."""
        return CheckpointUnsupported(
            f"{field} in {self.file} is {shown(self.values.get(field))}, which can't be exported.",
            f"hfx exports models whose {field} is {wanted}.",
        )

    def _corrupt(self, field: str, wanted: str) -> CheckpointCorrupt:
        value = shown(self.values.get(field))
        return CheckpointCorrupt(f"{field} in {self.file} is {value}; it should be {wanted}.", AGAIN)


def resolve_config(checkpoint: Checkpoint) -> Config:
    """config.json as transformers reads it, defaults and old names of fields included."""
    from transformers import AutoConfig

    file = checkpoint.folder / "config.json"
    try:
        with quiet_libraries():
            config = AutoConfig.from_pretrained(checkpoint.view, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a config that no one foresaw fails anywhere in transformers
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise CheckpointCorrupt(
            f"{file} can't be read by transformers: {checkpoint.in_folder(reason)}", AGAIN
        ) from error
    tied, scaled = tied_and_scaled(checkpoint.config)
    return Config(file, config.to_dict(), tied, scaled, written_by_4(checkpoint.config))


@dataclass(frozen=True)
class Family:
    """One family; `architectures` are the classes of checkpoints with all that generation needs.

    `read(config, tensors)` describes a checkpoint by blocks. It reads no weight, and raises CheckpointUnsupported for a
    switch of the config that the blocks don't have, CheckpointCorrupt for tensors that don't fit it. `unbounded`: it
    has no table of positions, so that lengths of the config are those of its training, and no limits.
    """

    name: str
    kind: Kind
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Config, CheckpointTensors], Net]
    unbounded: bool = False
