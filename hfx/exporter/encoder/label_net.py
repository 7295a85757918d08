"""The net of a bi-encoder's labels (GLiNER): it is exported beside the tokenizer, and answers for the gate in torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hfx.exporter.checkpoint_files import LABELS_TOKENIZER
from hfx.exporter.config_file import LABELLED
from hfx.exporter.encoder.checkpoint.architectures import check_encoder
from hfx.exporter.encoder.checkpoint.label_heads import Head, filled
from hfx.exporter.encoder.checkpoint.labelled import LABELS_ENCODER, Gliner
from hfx.exporter.encoder.checkpoint.pooling import token_sum
from hfx.exporter.encoder.graph.build import build_graph, inlined, save
from hfx.exporter.encoder.kinds.embedder import Embedder
from hfx.exporter.encoder.kinds.kind import width
from hfx.exporter.load import load_model
from hfx.exporter.model_files import write_tokenizer_json
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer import load_tokenizer, pad_id
from hfx.exporter.transformers_versions import gives_types
from hfx.names import Task
from hfx.python_backends.label_net import NET, TOKENIZER


class MeanOfLabels(Head):
    """The mean of a label's tokens, projected to `hidden` numbers if the net has another width."""

    has_masks = False

    def __init__(self, encoder_width: int, hidden: int) -> None:
        super().__init__()
        self.labels_projection = nn.Linear(encoder_width, hidden) if encoder_width != hidden else nn.Identity()

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the vectors [rows, hidden]."""
        shares = mask.to(states.dtype) / mask.sum(1, keepdim=True).to(states.dtype).clamp(min=1)
        return token_sum(shares, self.labels_projection(states))


@dataclass(frozen=True)
class LabelsEncoder:
    """The torch model of the labels, its pooler, and its tokenizer."""

    checkpoint: Checkpoint
    model: Any
    pooler: MeanOfLabels
    tokenizer: Any
    hidden: int

    @classmethod
    def load(cls, checkpoint: Checkpoint, own: Gliner) -> LabelsEncoder:
        """Load the labels' part of a checkpoint. Raises CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported."""
        labels = replace(checkpoint, config={**own.labels_config, LABELLED: {}})
        check_encoder(labels, Task.FEATURE_EXTRACTION)
        model = load_model(labels, "AutoModel", True, LABELS_ENCODER)
        with torch.device("meta"):
            pooler = MeanOfLabels(width(labels.config), own.hidden)
        filled(pooler, labels, lambda name: f"token_rep_layer.{name}")
        tokenizer = load_tokenizer(replace(labels, folder=checkpoint.folder / LABELS_TOKENIZER, weights=()))
        return cls(labels, model, pooler, tokenizer, own.hidden)

    def vectors(self, labels: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors [labels, hidden] that gliner gives `labels`."""
        made = []
        for label in labels:
            tokens = self.tokenizer(label, truncation=True, return_tensors="pt", verbose=False)
            with torch.inference_mode():
                made.append(self.pooler(self.model(**tokens).last_hidden_state, tokens["attention_mask"]))
        vectors: NDArray[np.float32] = torch.cat(made).numpy()
        return vectors

    def write(self, folder: Path) -> None:
        """Write the graph, its weights, and the tokenizer."""
        kind, padding = Embedder(numbers=self.hidden), pad_id(self.checkpoint, self.tokenizer)
        types = gives_types(self.tokenizer, self.checkpoint)
        save(inlined(build_graph(self.model, kind, padding, self.pooler, types=types)), folder / NET)
        write_tokenizer_json(self.tokenizer, folder / TOKENIZER)
