"""transformers on torch, fp32 or bf16: the checkpoint as it is."""

from __future__ import annotations

from bench.packages import Packages
from bench.peers import Model
from bench.peers.transformers_api import Classifying, Generating, wrapped

PACKAGES: tuple[Packages, ...] = ()
TYPES = {"fp32": "float32", "bf16": "bfloat16"}


def open_net(model: Model, folder: str, precision: str, threads: int, variant: str) -> Generating | Classifying:
    """The checkpoint in eval mode."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    kind = getattr(transformers, f"Auto{model.auto_class}")
    return wrapped(kind.from_pretrained(model.folder, dtype=getattr(torch, TYPES[precision])).eval(), model)
