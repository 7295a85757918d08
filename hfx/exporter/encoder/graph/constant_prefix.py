"""A decoder whose first tokens are the same for all texts: a trace has their keys and values as constants."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any


def behind_prefix(model: Any, prefix: Sequence[int]) -> Any:
    """Have `model` (without a head, in evaluation mode) read the ids `prefix` before each row.

    Its hidden states are those of the row alone. Outside of a trace, the model reads prefix and row in one piece, as
    the checkpoint does, so that the gate compares the constants with it.
    """
    import torch
    from transformers import DynamicCache
    from transformers.modeling_outputs import BaseModelOutput

    if not prefix:
        return model
    own, first = model.forward, torch.tensor([prefix])
    positions = int(getattr(model.config, "max_position_embeddings", 0))
    counts = positions > 0 and "position_ids" in inspect.signature(own).parameters
    with torch.no_grad():  # a plain cache keeps all keys, also in layers whose masks have a window
        cached = own(input_ids=first, past_key_values=DynamicCache(), use_cache=True).past_key_values
    past = [(layer.keys, layer.values) for layer in cached.layers]

    def forward(input_ids: Any = None, attention_mask: Any = None, **unused: Any) -> Any:
        rows = input_ids.shape[0]
        mask = torch.cat([torch.ones_like(first).expand(rows, -1), attention_mask], dim=1)
        if not torch._C._get_tracing_state():
            ids = torch.cat([first.expand(rows, -1), input_ids], dim=1)
            hidden = own(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            return BaseModelOutput(last_hidden_state=hidden[:, len(prefix) :])
        cache = DynamicCache()
        for layer, pair in enumerate(past):
            cache.update(*(each.expand(rows, -1, -1, -1) for each in pair), layer)
        feed = {"input_ids": input_ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
        if counts:  # the padding behind a row may be beyond the model's last position
            place: Any = torch.arange(input_ids.shape[1])[None] + len(prefix)
            feed["position_ids"] = place.clamp(max=positions - 1)
        return own(**feed)

    setattr(model, "forward", forward)  # noqa: B010 (mypy refuses to assign a method)
    return model
