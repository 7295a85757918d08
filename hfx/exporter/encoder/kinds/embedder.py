"""Embeddings: one vector for each text. Pooling and normalization are in the net's graph, and need no last step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hfx import names
from hfx.exporter.config_file import MATRYOSHKA
from hfx.exporter.encoder.checkpoint.architectures import TEXT_ENCODERS
from hfx.exporter.encoder.checkpoint.pooling import Pooling, make_pooler
from hfx.exporter.encoder.checkpoint.sentence_transformers import EMBEDDERS_PROMPTS, Prompts, read_pooling, read_prompts
from hfx.exporter.encoder.kinds.kind import Answer, Comparison, Config, EncoderKind, Request, omitted, width
from hfx.exporter.options import ExportOptions
from hfx.exporter.ranking import spearman
from hfx.exporter.source import Checkpoint
from hfx.names import DIMENSIONS, Kind, Task
from hfx.python_backends.tasks import PROMPTS
from hfx.repository.config_pbtxt import TensorSpec

if TYPE_CHECKING:
    import torch

SAME_DIRECTION = 0.995  # cosine: below it, the nearest neighbours in an index of sentences begin to change places
VECTORS_BYTES = 512 << 20  # limit on the vectors of all tokens of a batch, or on the logits that become these vectors
TEXT_ENCODER = "AutoModelForTextEncoding"
MEAN = Pooling()


@dataclass(frozen=True, kw_only=True)
class Embedder(EncoderKind):
    """An embedder, which gives a text one vector.

    The vector has `numbers` values (None: as many as a token's embedding). Callers may shorten it if `is_cut`.
    """

    name: ClassVar[Kind] = Kind.EMBEDDER
    task: ClassVar[Task] = Task.FEATURE_EXTRACTION
    architectures: ClassVar[tuple[str, ...]] = ("Model",)
    by_library: ClassVar[bool] = True
    ranks: ClassVar[bool] = True
    metric_name: ClassVar[str] = "spearman"
    own_options: ClassVar[frozenset[str]] = frozenset({"dimensions"})

    auto_class: str = "AutoModel"
    headless: bool = True
    pooling: Pooling = MEAN
    numbers: int | None = None
    is_cut: bool = False

    @classmethod
    def fields(cls, checkpoint: Checkpoint, options: ExportOptions) -> dict[str, Any]:
        pooling, config = cls.read_pooling(checkpoint), checkpoint.config
        prompts = cls.read_prompts(checkpoint, pooling)
        may_be_cut = "dimensions" in cls.own_options
        is_cut = may_be_cut and bool(options.dimensions or any(map(config.get, MATRYOSHKA)))
        fields = {} if checkpoint.model_type not in TEXT_ENCODERS else {"auto_class": TEXT_ENCODER}
        return {
            **fields,
            "pooling": pooling,
            "numbers": pooling.width(cls.token_width(config)),
            "prompts": prompts,
            "is_cut": is_cut,
            "omitted": omitted(*(PROMPTS if prompts else ()), *([DIMENSIONS] if is_cut else ())),
        }

    @classmethod
    def read_pooling(cls, checkpoint: Checkpoint) -> Pooling:
        """Return what is done with token embeddings after the transformer."""
        return read_pooling(checkpoint.folder)

    @classmethod
    def read_prompts(cls, checkpoint: Checkpoint, pooling: Pooling) -> Prompts | None:
        """Return the prompts of a checkpoint, or None if no prompt can change an answer.

        If all prompts are empty, they still matter if a prompt's tokens are excluded from pooling, or if queries and
        documents are read differently.
        """
        may_be_empty = not pooling.pools_prompt or pooling.by_role
        return read_prompts(checkpoint.folder, EMBEDDERS_PROMPTS, may_be_empty=may_be_empty)

    @classmethod
    def token_width(cls, config: Config) -> int:
        """Return how many numbers the net has for each token before pooling."""
        return width(config)

    def details(self) -> dict[str, object]:
        return {**super().details(), "pooling": self.pooling.names}

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec(names.EMBEDDING, "TYPE_FP32", (-1,)),)

    def net_outputs(self, config: Config) -> tuple[TensorSpec, ...]:
        return (TensorSpec(names.EMBEDDING, "TYPE_FP32", (self.numbers or width(config),)),)

    @property
    def has_last_step(self) -> bool:
        return self.is_cut

    @property
    def postprocess_reads(self) -> tuple[str, ...]:
        return (DIMENSIONS,) if self.is_cut else ()

    @property
    def pools_prompt(self) -> bool:
        return self.pooling.pools_prompt

    @property
    def pooler_tensors(self) -> tuple[str, ...]:
        return tuple("linear." for layer in self.pooling.layers if layer.kind == "Dense" and not layer.path)

    def load_model(self, checkpoint: Checkpoint, tokenizer: Any) -> tuple[Any, torch.nn.Module | None]:
        model, _ = super().load_model(checkpoint, tokenizer)
        return model, make_pooler(self.pooling, checkpoint)

    def request_options(self, sample: int, config: Config) -> Request:
        options = super().request_options(sample, config)
        prompts = 1 + (len(self.prompts.texts) if self.prompts else 0)
        if self.is_cut and sample // prompts % 2 == 1:
            (embedding,) = self.net_outputs(config)
            options[DIMENSIONS] = (embedding.dims[0] + 1) // 2
        return options

    def compare(self, reference: Answer, answer: Answer) -> Comparison:
        """Two vectors are the same if their cosine is at least SAME_DIRECTION; the drift is 1 - cosine."""
        similarity = cosine(reference[names.EMBEDDING], answer[names.EMBEDDING])
        return Comparison(similarity >= SAME_DIRECTION, max(0.0, 1.0 - similarity))

    def metric(self, answers: Sequence[Answer], targets: Sequence[str]) -> float:
        return spearman(self.pair_scores(answers), targets)

    def pair_scores(self, answers: Sequence[Answer]) -> list[float]:
        """Return the similarities of pairs; the two texts of a pair follow each other in `answers`."""
        return in_turn(answers, cosine)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the cosine similarity; 1 for two zero vectors, which a user can't tell apart."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    norm = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y / norm) if norm else float(np.array_equal(x, y))


def in_turn(answers: Sequence[Answer], similarity: Callable[[Any, Any], float]) -> list[float]:
    """Return the similarities of pairs; the two texts of a pair follow each other in `answers`."""
    vectors = [answer[names.EMBEDDING] for answer in answers]
    return [similarity(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]


def rows_within(max_length: int, numbers: int) -> int:
    """Return how many rows of `max_length` tokens, with `numbers` float32 values for each token, fit VECTORS_BYTES."""
    return max(1, VECTORS_BYTES // (4 * max_length * numbers))
