"""Small configurations of real architectures, and how their weights start."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.zoo.recipes import Recipe

_INITIAL_STD = 0.05
_SHARPNESS = 1.5  # of the first attention: louder queries and keys, fewer tokens seen


@dataclass(frozen=True)
class Architecture:
    """The prefix of the transformers classes, the tokenizer kind, and the config keywords for a recipe."""

    prefix: str
    tokenizer: str
    settings: Callable[[Recipe], dict[str, Any]]


def _bert(recipe: Recipe) -> dict[str, Any]:
    return {
        "hidden_size": recipe.hidden,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "intermediate_size": recipe.feed_forward,
        "max_position_embeddings": recipe.max_tokens,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": _INITIAL_STD,
    }


def _roberta(recipe: Recipe) -> dict[str, Any]:
    # RoBERTa and MPNet count positions from pad_token_id + 1, which is 2.
    return _bert(recipe) | {"max_position_embeddings": recipe.max_tokens + 2, "type_vocab_size": 1}


def _mpnet(recipe: Recipe) -> dict[str, Any]:
    return _bert(recipe) | {"max_position_embeddings": recipe.max_tokens + 2, "relative_attention_num_buckets": 32}


def _distilbert(recipe: Recipe) -> dict[str, Any]:
    return {
        "dim": recipe.hidden,
        "n_layers": recipe.layers,
        "n_heads": recipe.heads,
        "hidden_dim": recipe.feed_forward,
        "max_position_embeddings": recipe.max_tokens,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
        "initializer_range": _INITIAL_STD,
    }


def _bart(recipe: Recipe) -> dict[str, Any]:
    sides: dict[str, int] = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": recipe.layers,
            f"{side}_attention_heads": recipe.heads,
            f"{side}_ffn_dim": recipe.feed_forward,
        }
    return sides | {
        "d_model": recipe.hidden,
        "max_position_embeddings": recipe.max_tokens,
        "dropout": 0.0,
        "init_std": _INITIAL_STD,
    }


def _electra(recipe: Recipe) -> dict[str, Any]:
    # The published small ELECTRA embeds into fewer dimensions than it computes in, hence embeddings_project.
    return _bert(recipe) | {"embedding_size": recipe.hidden // 2, "summary_last_dropout": 0.0}


def _albert(recipe: Recipe) -> dict[str, Any]:
    return _bert(recipe) | {"embedding_size": recipe.hidden // 2, "classifier_dropout_prob": 0.0}


def _deberta_v3(recipe: Recipe) -> dict[str, Any]:
    return _bert(recipe) | {
        "type_vocab_size": 0,
        "relative_attention": True,
        "position_buckets": 32,
        "max_relative_positions": -1,
        "pos_att_type": ["p2c", "c2p"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "pooler_hidden_size": recipe.hidden,
        "pooler_dropout": 0,
    }


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
        "initializer_range": _INITIAL_STD,
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


ARCHITECTURES: dict[str, Architecture] = {
    "distilbert": Architecture("DistilBert", "distilbert", _distilbert),
    "bert": Architecture("Bert", "bert", _bert),
    "bert-cased": Architecture("Bert", "bert-cased", _bert),
    "roberta": Architecture("Roberta", "roberta", _roberta),
    "xlm-roberta": Architecture("XLMRoberta", "xlm-roberta", _roberta),
    "mpnet": Architecture("MPNet", "mpnet", _mpnet),
    "bart": Architecture("Bart", "bart", _bart),
    "electra": Architecture("Electra", "electra", _electra),
    "albert": Architecture("Albert", "albert", _albert),
    "deberta-v3": Architecture("DebertaV2", "deberta-v2", _deberta_v3),
    "gpt2": Architecture("GPT2", "gpt2", _gpt2),
    "t5": Architecture("T5", "t5", _t5),
    "flan-t5": Architecture("T5", "t5", _flan_t5),
}


def model(recipe: Recipe, tokenizer: Any, head: str, labels: tuple[str, ...], problem_type: str | None) -> Any:
    """An initialised model of the recipe's architecture with `head` ("ForSequenceClassification", "Model", ...)."""
    import transformers

    architecture = ARCHITECTURES[recipe.architecture]
    config_class = getattr(transformers, f"{architecture.prefix}Config")
    config = config_class(
        vocab_size=len(tokenizer), **architecture.settings(recipe), **_special_ids(tokenizer), **_labels(labels)
    )
    config.problem_type = problem_type
    initialised = getattr(transformers, f"{architecture.prefix}{head}")(config)
    _attend_to_the_alike(initialised)
    _place_on_waves(initialised)
    return initialised


# The names under which the architectures hold the query and the key projection of an attention.
_QUERY_AND_KEY = ("query", "key"), ("q_lin", "k_lin"), ("q_proj", "k_proj"), ("q", "k"), ("query_proj", "key_proj")


def _attend_to_the_alike(model: Any) -> None:
    """Start every attention with keys equal to queries, so that equal tokens find each other from the first step.

    Comparing two texts is what a small model learns last from random weights; this saves most of those steps.
    """
    import torch

    with torch.no_grad():
        for module in model.modules():
            for query, key in _QUERY_AND_KEY:
                if hasattr(module, query) and hasattr(module, key):
                    getattr(module, query).weight.mul_(_SHARPNESS)
                    getattr(module, key).weight.copy_(getattr(module, query).weight)


def _place_on_waves(model: Any) -> None:
    """Start learned positions as sinusoids, as loud as random ones, so that neighbours start out alike."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("position_embeddings.weight", "embed_positions.weight")):
                count, width = parameter.shape
                rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
                angle = torch.arange(count).unsqueeze(1) * rate
                waves = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
                parameter.copy_(waves * math.sqrt(2) * _INITIAL_STD)


def _special_ids(tokenizer: Any) -> dict[str, int]:
    ids = {"pad_token_id": tokenizer.pad_token_id}
    if tokenizer.bos_token_id is not None:
        ids |= {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    return ids


def _labels(labels: tuple[str, ...]) -> dict[str, Any]:
    if not labels:
        return {}
    return {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
