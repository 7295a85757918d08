"""The definition of a family of generators, and its config: read with transformers' defaults, checked before use."""

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
MOST_COMPUTED = 100_000  # the most rows of a computed table, whose size no file of weights limits
HEAD_DIM_STEP = 8  # GroupQueryAttention only supports head sizes that are multiples of this
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

    `tied` says whether the head is the table of embeddings, and `scaled` whether a T5 scales the head's input. Both
    follow the version of transformers that wrote the file; `written_by_4` is true for version 4 (see
    transformers_versions.py).
    """

    file: Path
    values: dict[str, Any]
    tied: bool = True
    scaled: bool = False
    written_by_4: bool = False

    def get(self, field: str) -> Any:
        """Return the unchecked value of `field`; None if it is missing."""
        return self.values.get(field)

    def size(self, field: str, most: int = LARGEST_SIZE, least: int = 1) -> int:
        """Read a field that must be a whole number from `least` to `most`."""
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
        """Return whether the head is the table of embeddings, which is stored under one of the names `tables`.

        transformers 4 overwrites a `head` that is stored beside a tied table; transformers 5 uses it if it differs.
        """
        return self.tied and (self.written_by_4 or not tensors.differ(head, *tables))

    def one_table(self, tensors: CheckpointTensors, *names: str) -> str:
        """Return the first of the stored `names` of a table that both stacks share.

        Raises CheckpointUnsupported if another stored table differs and transformers 5 wrote the checkpoint, as
        transformers 5 would use both.
        """
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
        """Return the embedding, stored under one of the names `tables`, and the head, which may be the same table.

        The `projections` follow the embedding and precede the head.
        """
        vocabulary, head = self.size("vocab_size"), tensors.first(*heads)
        tied = self.tied_head(tensors, head, *tables)
        table = tensors.parameter(self.one_table(tensors, *tables, *(heads if tied else ())), vocabulary, width)
        embedding = Embedding(tables[0].removesuffix(".weight"), table, scale, projections[0])
        weight = table if tied else tensors.parameter(head, vocabulary, width)
        return embedding, Head(Linear("lm_head", weight), embedding if tied else None, projection=projections[1])

    def positive(self, field: str) -> float:
        """Read a field that must be a finite number above 0."""
        value = self.values.get(field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self._corrupt(field, "a number above 0")
        return float(value)

    def activation(self, field: str) -> Activation:
        """Read a field that must be the name of a supported activation function."""
        value = self.values.get(field)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.unsupported(field, f"one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def head_dim(self, width_field: str, heads_field: str) -> int:
        """Return width / heads, which must be a multiple of 8."""
        width, heads = self.size(width_field), self.divisor(heads_field, width_field)
        return self.checked_head_dim(width // heads, f"{width_field} / {heads_field}")

    def divisor(self, field: str, whole_field: str) -> int:
        """Read a field that must divide the number in `whole_field`."""
        whole, number = self.size(whole_field), self.size(field)
        if whole % number:
            raise self._corrupt(field, f"a divisor of {whole_field} ({whole})")
        return number

    def checked_head_dim(self, head_dim: int, source: str, step: int = HEAD_DIM_STEP) -> int:
        """Return `head_dim`, computed from the fields `source`; refuse it unless it is a multiple of `step`."""
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
        """Return the error for a switch whose value needs blocks that don't exist."""
        return CheckpointUnsupported(
            f"{field} in {self.file} is {shown(self.values.get(field))}, which can't be exported.",
            f"hfx exports models whose {field} is {wanted}.",
        )

    def _corrupt(self, field: str, wanted: str) -> CheckpointCorrupt:
        value = shown(self.values.get(field))
        return CheckpointCorrupt(f"{field} in {self.file} is {value}; it should be {wanted}.", AGAIN)


def resolve_config(checkpoint: Checkpoint) -> Config:
    """Return config.json as transformers reads it, with defaults and with old names of fields resolved."""
    from transformers import AutoConfig

    file = checkpoint.folder / "config.json"
    try:
        with quiet_libraries():
            config = AutoConfig.from_pretrained(checkpoint.view, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # an unusual config can fail anywhere in transformers
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise CheckpointCorrupt(
            f"{file} can't be read by transformers: {checkpoint.in_folder(reason)}", AGAIN
        ) from error
    tied, scaled = tied_and_scaled(checkpoint.config)
    return Config(file, config.to_dict(), tied, scaled, written_by_4(checkpoint.config))


@dataclass(frozen=True)
class Family:
    """One family; `architectures` are the classes whose checkpoints have everything that generation needs.

    `read(config, tensors)` describes a checkpoint by blocks. It reads no weights. It raises CheckpointUnsupported for a
    switch of the config that the blocks don't have, and CheckpointCorrupt for tensors that don't fit the config. An
    `unbounded` family has no table of positions: the lengths in its config come from training, and are no limits.
    """

    name: str
    kind: Kind
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Config, CheckpointTensors], Net]
    unbounded: bool = False
