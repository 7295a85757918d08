"""Static embeddings: a table has a vector for each token; a text's vector is the mean of the vectors of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hfx.exporter.encoder.checkpoint.module_list import STATIC
from hfx.exporter.encoder.checkpoint.pooling import make_pooler
from hfx.exporter.encoder.checkpoint.sentence_transformers import put_into_lower_case
from hfx.exporter.encoder.checkpoint.static_embeddings import load_static_tokenizer, load_table, truncation
from hfx.exporter.encoder.kinds.embedder import Embedder, rows_within
from hfx.exporter.encoder.kinds.kind import LONGEST, Config, Settings, width
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Static(Embedder):
    """An embedder that gives the mean of the vectors of a text's tokens; zeros for a text without tokens."""

    name: ClassVar[Kind] = Kind.STATIC
    plain_name: ClassVar[str] = "static embeddings"
    takes_empty: ClassVar[bool] = True

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return checkpoint.model_type == STATIC

    def longest_input(self, checkpoint: Checkpoint) -> int:
        kept, _ = truncation(checkpoint)
        return LONGEST if kept is None else min(kept, LONGEST)

    def most_rows(self, config: Config, max_length: int) -> int | None:
        return rows_within(max_length, width(config))

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        return {"takes_empty": True, **super().reader_settings(checkpoint, tokenizer, max_length)}

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        tokenizer = load_static_tokenizer(checkpoint)
        put_into_lower_case(tokenizer, checkpoint)
        return tokenizer

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        return load_table(checkpoint), make_pooler(self.pooling, checkpoint)
