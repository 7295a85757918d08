"""Checkpoints with the shapes of published models and random weights, written once and kept in the cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import vocabulary
from hfx.exporter.quiet import quiet_libraries
from hfx.perf.cache import made

LIBRARIES = ("torch", "transformers", "tokenizers")
# The tokenizer that a model class would otherwise be given is that of BERT or RoBERTa.
WRAPPERS = {
    "DistilBertForSequenceClassification": "DistilBertTokenizer",
    "BartForConditionalGeneration": "BartTokenizer",
    "T5ForConditionalGeneration": "PreTrainedTokenizerFast",  # which transformers 4 has, too
}


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

SHAPES: tuple[Shape, ...] = (
    # distilbert-base-uncased-finetuned-sst-2-english
    Shape("distilbert-base", "DistilBertForSequenceClassification", "DistilBertConfig", {
        "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
        "max_position_embeddings": 512,
    }, "bert", 512, _NEGATIVE_POSITIVE),
    # microsoft/mpnet-base, which sentence-transformers/all-mpnet-base-v2 is
    Shape("mpnet-base", "MPNetForSequenceClassification", "MPNetConfig", {
        "vocab_size": 30527, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 514, "relative_attention_num_buckets": 32,
    }, "roberta", 512, _NEGATIVE_POSITIVE),
    # answerdotai/ModernBERT-base
    Shape("modernbert-base", "ModernBertForSequenceClassification", "ModernBertConfig", {
        "vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12,
        "intermediate_size": 1152, "max_position_embeddings": 8192, "cls_token_id": 0, "sep_token_id": 2,
    }, "roberta", 8192, _NEGATIVE_POSITIVE),
    # microsoft/deberta-v3-base
    Shape("deberta-v3-base", "DebertaV2ForSequenceClassification", "DebertaV2Config", {
        "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 0, "relative_attention": True,
        "max_relative_positions": -1, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_biased_input": False, "pooler_hidden_size": 768,
    }, "roberta", 512, _NEGATIVE_POSITIVE),
    # sentence-transformers/all-MiniLM-L6-v2
    Shape("minilm-l6", "BertModel", "BertConfig", {
        "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "max_position_embeddings": 512,
    }, "bert", 512),
    # BAAI/bge-base-en-v1.5
    Shape("bge-base", "BertModel", "BertConfig", {
        "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "max_position_embeddings": 512,
    }, "bert", 512),
    # distilbert/distilgpt2
    Shape("distilgpt2", "GPT2LMHeadModel", "GPT2Config", {
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 6, "n_head": 12,
    }, "gpt2", 1024),
    # HuggingFaceTB/SmolLM-135M
    Shape("smollm-135m", "LlamaForCausalLM", "LlamaConfig", {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }, "gpt2", 2048),
    # Qwen/Qwen3-0.6B
    Shape("qwen3-0.6b", "Qwen3ForCausalLM", "Qwen3Config", {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True, "dtype": "bfloat16",
    }, "gpt2", 4096),
    # TinyLlama/TinyLlama-1.1B-Chat-v1.0, whose context is 2,048 tokens
    Shape("tinyllama-1.1b", "LlamaForCausalLM", "LlamaConfig", {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "dtype": "bfloat16",
    }, "gpt2", 4096),
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
    "MPNetConfig": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128},
    "DebertaV2Config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
                        "pooler_hidden_size": 64},
    "ModernBertConfig": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96},
    "GPT2Config": {"n_embd": 128, "n_layer": 2, "n_head": 4},
    "LlamaConfig": {
        "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2,
    },
    "Qwen3Config": {
        "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32,
    },
    "T5Config": {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4},
    "BartConfig": {
        "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256,
    },
}  # fmt: skip


def smaller(shape: Shape, **config: Any) -> Shape:
    """The same architecture with two narrow layers, or with other values of CONFIG; its figures mean nothing."""
    return replace(shape, config={**shape.config, **(config or _SMALL[shape.config_class])})


def checkpoint(name: str, tiny: bool = False, **config: Any) -> Path:
    """The folder of the shape NAME, with other values of `config` or `tiny`; written at the first call."""
    shape = smaller(BY_NAME[name], **({} if tiny else config)) if tiny or config else BY_NAME[name]
    return made(f"checkpoints/{_key(shape)}/{shape.name}", lambda folder: write(shape, folder))


def write(shape: Shape, folder: Path) -> None:
    """Write weights, configurations and tokenizer of SHAPE into FOLDER."""
    import torch
    import transformers

    tokenizer = vocabulary.tokenizer(shape.tokenizer, shape.config["vocab_size"], shape.max_tokens)
    config = getattr(transformers, shape.config_class)(**shape.config, **_special_ids(tokenizer), **_labels(shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        model = getattr(transformers, shape.model_class)(config).eval()
    if config.dtype is not None:
        model.to(config.dtype)
    if shape.generation:
        model.generation_config.update(**shape.generation)
    with quiet_libraries():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    if wrapper := WRAPPERS.get(shape.model_class):
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": wrapper}
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")


def _key(shape: Shape) -> str:
    parts = {
        "shape": asdict(shape),
        "sources": [Path(__file__).read_text(encoding="utf-8"), Path(vocabulary.__file__).read_text(encoding="utf-8")],
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "corpus": hashlib.sha256("\n".join(vocabulary.corpus()).encode()).hexdigest(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


def _special_ids(tokenizer: Any) -> dict[str, int]:
    roles = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {role: getattr(tokenizer, role) for role in roles if getattr(tokenizer, role) is not None}
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is not None:
        ids["decoder_start_token_id"] = tokenizer.pad_token_id  # T5 starts its answers with padding
    return ids


def _labels(shape: Shape) -> dict[str, Any]:
    if not shape.labels:
        return {}
    return {"id2label": dict(enumerate(shape.labels)), "label2id": {label: i for i, label in enumerate(shape.labels)}}
