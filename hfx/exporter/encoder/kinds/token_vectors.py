"""Vectors of tokens: one vector for each token of a text. The last step removes padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hfx import names
from hfx.client.results import max_sim
from hfx.exporter.encoder.checkpoint.pooling import Pooling
from hfx.exporter.encoder.checkpoint.sentence_transformers import read_pooling
from hfx.exporter.encoder.kinds.embedder import SAME_DIRECTION, Embedder, cosine, in_turn, rows_within
from hfx.exporter.encoder.kinds.kind import Answer, Comparison, Config, Settings, width
from hfx.exporter.options import ExportOptions
from hfx.exporter.source import Checkpoint
from hfx.names import Kind
from hfx.repository.config_pbtxt import TensorSpec


@dataclass(frozen=True, kw_only=True)
class TokenVectors(Embedder):
    """An embedder that was exported with --token-vectors: it gives a vector for each token."""

    name: ClassVar[Kind] = Kind.TOKEN_VECTORS
    own_options: ClassVar[frozenset[str]] = frozenset({"token_vectors"})
    plain_name: ClassVar[str] = "vectors of tokens"
    has_last_step: ClassVar[bool] = True
    postprocess_reads: ClassVar[tuple[str, ...]] = (names.ATTENTION_MASK,)
    why_python: ClassVar[tuple[str, ...]] = ("vectors of tokens",)

    @classmethod
    def claims(cls, checkpoint: Checkpoint, options: ExportOptions) -> bool:
        return options.token_vectors

    @classmethod
    def read_pooling(cls, checkpoint: Checkpoint) -> Pooling:
        return read_pooling(checkpoint.folder, tokens=True)

    def most_rows(self, config: Config, max_length: int) -> int | None:
        return rows_within(max_length, self.numbers or width(config))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._vectors(self.numbers or -1), TensorSpec(names.INPUT_TOKENS, "TYPE_INT32", (1,))

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return (self._vectors(self.numbers or width(config)),)

    def _vectors(self, numbers: int) -> TensorSpec:
        return TensorSpec(names.EMBEDDING, "TYPE_FP32", (-1, numbers))

    def last_step_settings(self, config: Config) -> Settings:
        return {"tokens": True}

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Compare the token vectors one by one, and judge by the two vectors whose directions differ most.

        The answers are the same if the cosine of even these two is at least SAME_DIRECTION. The drift is 1 - their
        cosine.
        """
        pairs = [*zip(reference[names.EMBEDDING], answer[names.EMBEDDING], strict=True)]
        similarity = min((cosine(a, b) for a, b in pairs), default=1.0)
        return Comparison(similarity >= SAME_DIRECTION, max(0.0, 1.0 - similarity))

    def pair_scores(self, answers: Sequence[Answer]) -> list[float]:
        return in_turn(answers, max_sim)
