"""The base class of kinds whose models read queries and documents differently."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.encoder.checkpoint.late_interaction import (
    LateInteraction,
    read_late_interaction,
    role_ids,
    role_settings,
)
from hfx.exporter.encoder.kinds.embedder import Embedder
from hfx.exporter.encoder.kinds.kind import Request, Settings
from hfx.exporter.options import ExportOptions, checked_max_length
from hfx.exporter.source import Checkpoint


@dataclass(frozen=True, kw_only=True)
class ReadByRole(Embedder):
    """An embedder with separate readings of queries and documents.

    `late` says how the two are read; a published model has this in its files.
    """

    late: LateInteraction | None = None
    checkpoint: Checkpoint | None = None

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        fields = super().fields(checkpoint, options)
        late = cls(**fields).read_late(checkpoint, options.max_length)
        return {**fields, "late": late, "checkpoint": checkpoint}

    def read_late(self, checkpoint: Checkpoint, requested: int | None) -> LateInteraction:
        """Return how queries and documents are read; documents have the `requested` length, if that is given."""
        late, read = read_late_interaction(checkpoint.folder), self.longest_input(checkpoint)
        longest = self.longest_of_model(checkpoint)
        query = replace(late.query, length=late.query.length or min(read, requested or read))
        if query.looks_up:
            query = replace(query, length=min(late.query.length or longest, longest))
        window = checkpoint.config.get("local_attention")
        what = f"Queries for {checkpoint.folder} have {max(query.length, query.least)} tokens"
        if max(query.length, query.least) > longest:
            raise CheckpointUnsupported(
                f"{what}, and the model reads {longest}.",
                "Correct their length, or max_position_embeddings (config.json).",
            )
        if isinstance(window, int) and late.sees_nothing(window // 2):
            raise CheckpointUnsupported(
                f"{what}, of which the last see no word of a short one (local_attention is {window}): their vectors "
                "depend on torch's attention.",
                "If the model was trained without query expansion, switch it off in its files; else shorten queries.",
            )
        length = min(late.document.length or read, longest) if requested is None else requested
        document = replace(late.document, length=checked_max_length(length, longest, self.shortest))
        return LateInteraction(query, document)

    def max_length(self, checkpoint: Checkpoint, requested: int | None) -> int:
        assert self.late is not None
        return self.late.longest

    @property
    def own_widths(self) -> frozenset[int]:
        """The width of expanded queries, if queries are expanded."""
        return frozenset({self.late.query.least} - {0}) if self.late else frozenset()

    def reader_settings(self, checkpoint: Checkpoint, tokenizer: Any, max_length: int) -> Settings:
        assert self.late is not None
        settings = super().reader_settings(checkpoint, tokenizer, max_length)
        return {**settings, "roles": role_settings(self.late, checkpoint, tokenizer)}

    def load_tokenizer(self, checkpoint: Checkpoint) -> Any:
        assert self.late is not None
        tokenizer = super().load_tokenizer(checkpoint)
        role_settings(self.late, checkpoint, tokenizer)  # refuses tokens that the model lacks, before any work
        return tokenizer

    def expected_ids(self, tokenizer: Any, request: Request, max_length: int) -> list[list[int]]:
        assert self.late is not None and self.checkpoint is not None
        return role_ids(self.late, self.checkpoint, tokenizer, request, max_length)
