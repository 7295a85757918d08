"""transformers on torch, in float32 or bfloat16: the checkpoint as it is."""

from __future__ import annotations

from bench.generation_cases import THREADS, Model
from bench.peers_generation.generate import model_class, prepared
from bench.processes import Prepare

TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def open_way(model: Model, folder: str, fetched: str, precision: str) -> Prepare:
    """The model in eval mode."""
    import torch
    import transformers

    torch.set_num_threads(THREADS)
    kind = getattr(transformers, model_class(model))
    net = kind.from_pretrained(model.checkpoint, dtype=getattr(torch, TYPES[precision]))
    return prepared(net.eval(), model)
