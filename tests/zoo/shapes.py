"""Full-size checkpoints with random weights, for measuring speed: the dimensions are the published ones.

Owns the table of shapes; their answers mean nothing. The tokenizer is of the model's kind, trained on the world's
text, so its vocabulary is smaller than the embedding table, which keeps its published number of rows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.zoo import sentence_transformers_files, tokenization
from tests.zoo.tasks import TASKS


@dataclass(frozen=True)
class Shape:
    """The transformers model class, its config's keywords (as published), and the kind of its tokenizer."""

    name: str
    model_class: str
    config_class: str
    config: dict[str, Any]
    tokenizer: str
    max_tokens: int
    labels: tuple[str, ...] = ()
    is_sentence_transformer: bool = False
    seed: int = 20240610


_NEGATIVE_POSITIVE = ("NEGATIVE", "POSITIVE")
_THREE = ("negative", "neutral", "positive")

SHAPES: tuple[Shape, ...] = (
    # distilbert-base-uncased-finetuned-sst-2-english
    Shape("distilbert-base", "DistilBertForSequenceClassification", "DistilBertConfig", {
        "vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072,
        "max_position_embeddings": 512,
    }, "distilbert", 512, _NEGATIVE_POSITIVE),
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
    # sentence-transformers/all-MiniLM-L6-v2
    Shape("minilm-l6", "BertModel", "BertConfig", {
        "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "max_position_embeddings": 512, "type_vocab_size": 2,
    }, "bert", 256, is_sentence_transformer=True),
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
    # facebook/bart-large-cnn
    Shape("bart-large-cnn", "BartForConditionalGeneration", "BartConfig", {
        "vocab_size": 50264, "d_model": 1024, "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16,
        "decoder_attention_heads": 16, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
        "max_position_embeddings": 1024, "forced_bos_token_id": 0,
    }, "bart", 1024),
)  # fmt: skip

BY_NAME = {shape.name: shape for shape in SHAPES}
VOCAB_SIZE = 4000
_TEXTS_A_TASK = 2000
# What summarization decodes with when a caller says nothing, as bart-large-cnn publishes it.
_GENERATION = {
    "bart-large-cnn": {
        "num_beams": 4, "max_length": 142, "min_length": 56, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
        "early_stopping": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
    }
}  # fmt: skip


def write(shape: Shape, folder: Path) -> dict[str, Any]:
    """Write the checkpoint of `shape` into `folder`; the figures of it, its number of parameters among them."""
    import torch
    import transformers

    tokenizer = tokenization.train(shape.tokenizer, _texts(), VOCAB_SIZE, shape.max_tokens)
    config = getattr(transformers, shape.config_class)(**shape.config, **_special_ids(tokenizer), **_labels(shape))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        model = getattr(transformers, shape.model_class)(config).eval()
    if shape.name in _GENERATION:
        model.generation_config.update(**_GENERATION[shape.name])
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    if shape.is_sentence_transformer:
        sentence_transformers_files.write(folder, model, tokenizer)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{shape.name}: {parameters / 1e6:.1f} M parameters", file=sys.stderr)
    return {"parameters": parameters}


def _texts() -> list[str]:
    return [
        text
        for task in TASKS.values()
        if task.objective
        for example in task.generate("train", _TEXTS_A_TASK)
        for text in task.objective.texts(example)
    ]


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
