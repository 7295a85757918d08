"""The table of shapes: what a published model's files say of its size, and nothing of its weights.

It must not know how a checkpoint is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The transformers model class, its config's keywords (as published), and the kind of its tokenizer.

    `generation` is what its generation_config.json says beyond the special ids.
    """

    name: str
    model_class: str
    config_class: str
    config: Mapping[str, Any]
    tokenizer: str
    max_tokens: int
    labels: tuple[str, ...] = ()
    generation: Mapping[str, Any] | None = None
    seed: int = 20240610


_NEGATIVE_POSITIVE = ("NEGATIVE", "POSITIVE")
_THREE = ("negative", "neutral", "positive")

SHAPES: tuple[Shape, ...] = (
    # distilbert-base-uncased-finetuned-sst-2-english
    Shape("distilbert-base", "DistilBertForSequenceClassification", "DistilBertConfig", {
        "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
        "max_position_embeddings": 512,
    }, "bert", 512, _NEGATIVE_POSITIVE),
    # bert-base-uncased
    Shape("bert-base", "BertForSequenceClassification", "BertConfig", {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    }, "bert", 512, _NEGATIVE_POSITIVE),
    # roberta-base
    Shape("roberta-base", "RobertaForSequenceClassification", "RobertaConfig", {
        "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
    }, "roberta", 512, _THREE),
    # distilbert/distilgpt2
    Shape("distilgpt2", "GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 6, "n_head": 12,
    }, "gpt2", 1024),
    # google/flan-t5-base
    Shape("flan-t5-base", "T5ForConditionalGeneration", "T5Config", {
        "vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_decoder_layers": 12,
        "num_heads": 12, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "n_positions": 512,
    }, "t5", 512),
    # facebook/bart-large-cnn; a caller who says nothing gets what it publishes for summaries
    Shape("bart-large-cnn", "BartForConditionalGeneration", "BartConfig", {
        "vocab_size": 50264, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
        "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024, "forced_bos_token_id": 0,
    }, "roberta", 1024, generation={
        "num_beams": 4, "max_length": 142, "min_length": 56, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
        "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    }),
)  # fmt: skip

BY_NAME: Mapping[str, Shape] = {shape.name: shape for shape in SHAPES}

# The same architecture small enough for a smoke run, by class of the config.
_SMALL: Mapping[str, Mapping[str, Any]] = {
    "DistilBertConfig": {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128},
    "BertConfig": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "RobertaConfig": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "GPT2Config": {"n_embd": 128, "n_layer": 2, "n_head": 4},
    "T5Config": {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    "BartConfig": {
        "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    },
}  # fmt: skip


def smaller(shape: Shape, **config: Any) -> Shape:
    """The same architecture with two narrow layers, or with other values of CONFIG; its figures mean nothing."""
    return replace(shape, config={**shape.config, **(config or _SMALL[shape.config_class])})
