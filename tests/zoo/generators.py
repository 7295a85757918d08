"""The architectures that write: GPT-2 and the two kinds of T5, beside those of `architectures.py`.

Owns their config keywords. They join the one table when this is imported; in a file of their own they left the keys of
the checkpoints as they were, all of which depend on that one.
"""

from __future__ import annotations

from typing import Any

from tests.zoo.architectures import ARCHITECTURES, Architecture
from tests.zoo.recipe import Recipe


def _gpt2(recipe: Recipe) -> dict[str, Any]:
    return {
        "n_embd": recipe.hidden,
        "n_layer": recipe.layers,
        "n_head": recipe.heads,
        "n_inner": recipe.feed_forward,
        "n_positions": recipe.max_tokens,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "initializer_range": 0.05,
    }


def _t5(recipe: Recipe) -> dict[str, Any]:
    """T5 v1.0: an ungated feed-forward, embeddings that are the output matrix too."""
    return {
        "d_model": recipe.hidden,
        "num_layers": recipe.layers,
        "num_decoder_layers": recipe.layers,
        "num_heads": recipe.heads,
        "d_kv": recipe.hidden // recipe.heads,
        "d_ff": recipe.feed_forward,
        "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }


def _flan_t5(recipe: Recipe) -> dict[str, Any]:
    """T5 v1.1, Flan and mT5: gated, untied; the heads together are wider than the model, as they may be."""
    return _t5(recipe) | {
        "d_kv": recipe.hidden // recipe.heads + 8,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }


ARCHITECTURES.update(
    {
        "gpt2": Architecture("GPT2", "gpt2", _gpt2),
        "t5": Architecture("T5", "t5", _t5),
        "flan-t5": Architecture("T5", "t5", _flan_t5),
    }
)
