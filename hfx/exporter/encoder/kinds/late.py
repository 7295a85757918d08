"""ColBERT: vectors for the tokens of queries and of documents; texts are ranked by these vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hfx.exporter.encoder.checkpoint.late_interaction import is_late_interaction, read_token_layers
from hfx.exporter.encoder.checkpoint.pooling import Pooling
from hfx.exporter.encoder.kinds.kind import width
from hfx.exporter.encoder.kinds.roles import ReadByRole
from hfx.exporter.encoder.kinds.token_vectors import TokenVectors
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind


@dataclass(frozen=True, kw_only=True)
class Late(ReadByRole, TokenVectors):
    """A ColBERT saved by sentence-transformers, PyLate or Stanford's library (late_interaction.py)."""

    name: ClassVar[Kind] = Kind.LATE

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return is_late_interaction(checkpoint.folder)

    @classmethod
    def read_pooling(cls, checkpoint: Checkpoint) -> Pooling:
        return read_token_layers(checkpoint.folder, width(checkpoint.config))
