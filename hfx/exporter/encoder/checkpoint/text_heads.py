"""The head of GLiClass, which scores a text by the embeddings of labels that a request names (gliclass 0.1)."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from transformers.activations import ACT2FN

from hfx.exporter.encoder.checkpoint.label_heads import Head, filled, labels_of, picked, places_of
from hfx.exporter.encoder.checkpoint.labelled import Gliclass
from hfx.exporter.encoder.checkpoint.pooling import LOWEST, token_sum
from hfx.exporter.source import Checkpoint
from hfx.python_backends.labelled import LABEL, MORE, TEXT, WORD

EPSILON = 1e-8  # gliclass's own


class TextHead(Head):
    """Scores [rows, 1, labels] of a text for each label (gliclass's uni-encoder).

    The text is pooled from its tokens, whose masks are WORD, for the first one, and TEXT; unless the separator is the
    first one, from all tokens. A label is the state of its token with the mask LABEL or, if it `averages`, the mean of
    that and the following tokens with the mask MORE. Both are projected, and then compared.
    """

    axes: ClassVar[dict[int, str]] = {0: "rows", 2: "labels"}

    def __init__(self, encoder_width: int, own: Gliclass) -> None:
        super().__init__()
        self.averages, self.normalizes = own.averages, own.normalizes
        self.pooling, self.reads_separator = own.pooling, own.reads_separator
        self.text_projector, self.classes_projector = (
            nn.ModuleDict(
                {"linear_1": nn.Linear(encoder_width, own.hidden), "linear_2": nn.Linear(own.hidden, encoder_width)}
            )
            for _ in range(2)
        )
        self.active = ACT2FN[own.activation]
        self.scorer = SCORERS[own.scorer](own)
        self.logit_scale = nn.Parameter(torch.zeros(()))

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the scores for the encoder's `states` and the attention mask."""
        text = self._projected(self.text_projector, self._pooled(states, mask))
        labels = self._projected(
            self.classes_projector, means_of_labels(states, mask) if self.averages else labels_of(states, mask)
        )
        scores: torch.Tensor = self.scorer(text, labels)[:, None]
        return scores * self.logit_scale if self.normalizes else scores

    def _pooled(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the text [rows, 1, hidden], as gliclass pools a text that is alone in its batch.

        It sees other tokens than those of the text as zeros, which count.
        """
        if self.pooling == "first":
            return picked(states, places_of(mask, WORD)[0][:, :1])
        of_text = mask.eq(WORD) | mask.eq(TEXT) if self.reads_separator else mask.gt(0)
        values = states.abs() if self.pooling.startswith("abs") else states
        if self.pooling.endswith("max"):
            other = 0.0 if self.reads_separator else LOWEST
            return values.masked_fill(~of_text[:, :, None], other).amax(1, keepdim=True)
        total = token_sum(of_text.to(states.dtype), values.square() if self.pooling == "rms" else values)[:, None]
        if self.pooling == "sum":
            return total
        mean = total / mask.gt(0).sum(1).to(states.dtype)[:, None, None].clamp(min=1)
        return mean.sqrt() if self.pooling == "rms" else mean

    def _projected(self, projector: Any, vectors: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = projector["linear_2"](self.active(projector["linear_1"](vectors)))
        return made / (made.norm(p=2, dim=-1, keepdim=True) + EPSILON) if self.normalizes else made


def means_of_labels(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the mean of the tokens of each label [rows, labels, hidden], of at least one label."""
    number = mask.eq(LABEL).long().cumsum(1)
    most: Any = number.max().clamp(min=1)
    order = torch.arange(1, most + 1)
    owned = number[:, None].eq(order[None, :, None]) & (mask.eq(LABEL) | mask.eq(MORE))[:, None]
    shares = owned.to(states.dtype)
    return shares @ states / shares.sum(-1, keepdim=True).clamp(min=1)


class Dot(nn.Module):
    """The product of a text [rows, 1, width] with each label [rows, labels, width]."""

    def __init__(self, own: Gliclass) -> None:
        super().__init__()

    def forward(self, text: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the scores [rows, labels]."""
        return (labels @ text.transpose(1, 2))[..., 0]


class WeightedDot(nn.Module):
    """The score of two projections of text and label, and of their product."""

    def __init__(self, own: Gliclass) -> None:
        super().__init__()
        self.proj_text, self.proj_label = (nn.Linear(own.hidden, 2 * own.hidden) for _ in range(2))
        self.out_mlp = nn.Sequential(
            nn.Linear(3 * own.hidden, 4 * own.hidden), nn.Dropout(), nn.ReLU(), nn.Linear(4 * own.hidden, 1)
        )

    def forward(self, text: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the scores [rows, labels]."""
        of_text, of_labels = self.proj_text(text), self.proj_label(labels)
        (text, factor), (label, weight) = (each.chunk(2, -1) for each in (of_text.expand_as(of_labels), of_labels))
        scores: torch.Tensor = self.out_mlp(torch.cat([text, label, factor * weight], -1))
        return scores[..., 0]


class Perceptron(nn.Module):
    """The score of text and label by three linears."""

    def __init__(self, own: Gliclass) -> None:
        super().__init__()
        inner = 256  # gliclass's own, whatever its config says
        self.mlp = nn.Sequential(
            nn.Linear(2 * own.hidden, inner),
            nn.ReLU(),
            nn.Linear(inner, inner // 2),
            nn.ReLU(),
            nn.Linear(inner // 2, 1),
        )

    def forward(self, text: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the scores [rows, labels]."""
        scores: torch.Tensor = self.mlp(torch.cat([text.expand_as(labels), labels], -1))
        return scores[..., 0]


SCORERS: dict[str, Any] = {"simple": Dot, "weighted-dot": WeightedDot, "mlp": Perceptron}


def load_text_head(checkpoint: Checkpoint, own: Gliclass, width: int) -> Head:
    """Return the head of a GLiClass whose encoder's states have `width`. Raises CheckpointCorrupt."""
    with torch.device("meta"):
        head = TextHead(width, own)
    return filled(head, checkpoint, lambda name: f"model.{name}")
