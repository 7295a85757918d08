"""Sparse embeddings (SPLADE): a number for each token of the vocabulary, from a masked language model's logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from hfx.exporter.encoder.checkpoint.late_interaction import refuse_other_tokens
from hfx.exporter.encoder.checkpoint.module_list import query_table
from hfx.exporter.encoder.checkpoint.pooling import SpladePooling
from hfx.exporter.encoder.checkpoint.sentence_transformers import is_sparse_encoder
from hfx.exporter.encoder.kinds.embedder import Embedder, rows_within
from hfx.exporter.encoder.kinds.kind import Config
from hfx.exporter.encoder.kinds.masks import vocabulary
from hfx.exporter.encoder.kinds.roles import ReadByRole
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind


@dataclass(frozen=True, kw_only=True)
class Sparse(Embedder):
    """A sparse embedder, which gives a text one number for each token of the vocabulary."""

    name: ClassVar[Kind] = Kind.SPARSE
    plain_name: ClassVar[str] = "sparse vectors"

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return is_sparse_encoder(checkpoint.folder)

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        return {**super().fields(checkpoint, options), "auto_class": "AutoModelForMaskedLM", "headless": False}

    @classmethod
    def token_width(cls, config: Config) -> int:
        return vocabulary(config)

    def most_rows(self, config: Config, max_length: int) -> int | None:
        return rows_within(max_length, self.net_outputs(config)[0].dims[-1])


@dataclass(frozen=True, kw_only=True)
class RoutedSparse(ReadByRole, Sparse):
    """A sparse embedder whose numbers for a query are looked up in a table."""

    why_python: ClassVar[tuple[str, ...]] = ("queries that are looked up",)

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return super().claims(checkpoint, options) and bool(query_table(checkpoint.folder))

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        assert isinstance(self.pooling, SpladePooling)
        tokenizer = super().load_tokenizer(checkpoint)
        refuse_other_tokens(checkpoint, self.pooling.table, tokenizer)
        return tokenizer
