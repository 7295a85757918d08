"""Generators of a few kilobytes with random weights, one for each config field that changes the net."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfx.exporter.checkpoint_files import find_weights
from hfx.exporter.config_file import read_config
from hfx.exporter.source import Checkpoint

VOCABULARY = 120
POSITIONS = 80
GPT2 = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": 48, "n_layer": 2, "n_head": 3}
# Encoder and decoder differ in every size that they may differ in.
BART = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "d_model": 48,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 56,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 48,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 1,
    "num_decoder_layers": 2,
    "num_heads": 5,  # 5 x 8 is not the hidden size
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,  # sources and answers are longer
    "decoder_start_token_id": 0,
}
# 6 x 16 is not the hidden size; two heads of Q share one of K and V.
LLAMA = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,
}
NEOX = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}
OPT = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_size": 48,
    "ffn_dim": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
}
# Prompts of more than 20 tokens are longer than the training lengths of these models.
TRAINED = {"original_max_position_embeddings": 20, "rope_theta": 500.0, "factor": 4.0}
ROTARY: dict[str, dict[str, Any]] = {
    "linear": {"factor": 3.0, "rope_theta": 500.0},
    "dynamic": {"factor": 3.0, "rope_theta": 500.0},
    "llama3": TRAINED | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": TRAINED,
    "yarn-stated": TRAINED | {"attention_factor": 1.3, "beta_fast": 3.0, "beta_slow": 0.5, "truncate": False},
    "yarn-scaled": TRAINED | {"mscale": 2.0, "mscale_all_dim": 0.7},
    "longrope": TRAINED | {
        "original_max_position_embeddings": POSITIONS, "long_factor": [9.0] * 8,
        "short_factor": [1 + 0.3 * at for at in range(8)],
    },
}  # fmt: skip
WINDOW = {"use_sliding_window": True, "sliding_window": 9}
ROPE_500 = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 700.0}
GEMMA_ROPE = {"sliding_attention": ROPE_500 | {"rope_theta": 50.0}, "full_attention": ROPE_500}
GEMMA = LLAMA | {
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 9,
    "query_pre_attn_scalar": 10,
    "rope_parameters": GEMMA_ROPE,
}
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}  # the class defaults are beyond the vocabulary
SMOLLM = LLAMA | IDS | {"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "head_dim": 16}
SCALED = BART | {"scale_embedding": True}
CLASSES = {
    "gemma": ("Gemma3ForCausalLM", "Gemma3TextConfig"),
    "llama": ("LlamaForCausalLM", "LlamaConfig"),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig"),
    "opt": ("OPTForCausalLM", "OPTConfig"),
    "ministral": ("MinistralForCausalLM", "MinistralConfig"),
    "mistral": ("MistralForCausalLM", "MistralConfig"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config"),
    "smollm": ("SmolLM3ForCausalLM", "SmolLM3Config"),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
    "bart": ("BartForConditionalGeneration", "BartConfig"),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig"),
    "m2m": ("M2M100ForConditionalGeneration", "M2M100Config"),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig"),
    "marian": ("MarianMTModel", "MarianConfig"),
    "t5": ("T5ForConditionalGeneration", "T5Config"),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config"),
}
# Config of each generator; its name begins with that of its CLASSES.
GENERATORS: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "gpt2-inner": GPT2 | {"n_inner": 56, "activation_function": "gelu"},
    "gpt2-untied": GPT2 | {"tie_word_embeddings": False, "n_embd": 24},
    "gpt2-unscaled": GPT2 | {"scale_attn_weights": False},
    "gpt2-by-layer": GPT2 | {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "gpt2-quick-gelu": GPT2 | {"activation_function": "quick_gelu"},
    "gemma": GEMMA,
    "gemma-untied": GEMMA
    | {
        "tie_word_embeddings": False,
        "attention_bias": True,
        "query_pre_attn_scalar": 40,
        "hidden_activation": "silu",
        "num_key_value_heads": 1,
        "sliding_window": 40,
    },
    "gemma-linear": GEMMA
    | {
        "layer_types": None,
        "sliding_window_pattern": 2,
        "head_dim": 32,
        "rope_parameters": GEMMA_ROPE | {"full_attention": LINEAR},
    },
    "neox": NEOX,
    "neox-in-turn": NEOX | {"use_parallel_residual": False, "tie_word_embeddings": True, "attention_bias": False},
    "neox-half": NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 300, "hidden_act": "gelu_new"},
    "neox-odd": NEOX | {"rotary_pct": 0.3125},  # 5 of 16 channels, of which transformers makes 6
    "neox-whole": NEOX | {"rotary_pct": 1.0, "num_attention_heads": 1},
    "neox-yarn": NEOX | {"rope_parameters": {"rope_type": "yarn", **TRAINED, "partial_rotary_factor": 0.5}},
    "opt": OPT,
    "opt-behind": OPT | {"do_layer_norm_before": False, "activation_function": "gelu"},
    "opt-350": OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 24, "_remove_final_layer_norm": True},
    "opt-narrow": OPT | {"word_embed_proj_dim": 16, "tie_word_embeddings": False},
    "opt-plain": OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False},
    "llama": LLAMA,
    "llama-tied": LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 1, "rms_norm_eps": 1e-2},
    "llama-biased": LLAMA | {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu"},
    "llama-own-kv": LLAMA | {"num_attention_heads": 3, "num_key_value_heads": None, "head_dim": None},
    "llama-theta": LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}, "head_dim": 32},
    **{
        f"llama-{name}": LLAMA | {"rope_parameters": {"rope_type": name.split("-")[0], **fields}}
        for name, fields in ROTARY.items()
    },
    "qwen2": LLAMA | {"num_key_value_heads": 2},
    "qwen2-yarn": LLAMA | {"rope_parameters": {"rope_type": "yarn", **ROTARY["yarn"]}},
    "qwen2-tied": LLAMA | {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1},
    "qwen2-window": LLAMA | WINDOW | {"max_window_layers": 1},
    "qwen3": LLAMA | {"num_key_value_heads": 2},
    "qwen3-tied": LLAMA
    | {
        "tie_word_embeddings": True,
        "attention_bias": True,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rms_norm_eps": 1e-2,
    },
    "qwen3-window": LLAMA | WINDOW | {"layer_types": ["sliding_attention", "full_attention"]},
    "ministral": LLAMA | {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": LLAMA | {"sliding_window": 7},
    "mistral-wide": LLAMA | {"sliding_window": 33, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 48},
    "mistral-narrow": LLAMA | {"sliding_window": 2, "num_key_value_heads": 6, "rope_parameters": ROPE_500},
    "mistral-unbounded": LLAMA
    | {"sliding_window": None, "tie_word_embeddings": True, "head_dim": None, "num_attention_heads": 3},
    "smollm": SMOLLM,
    "smollm-window": SMOLLM
    | WINDOW
    | {
        "no_rope_layers": [0, 1, 0],
        "num_key_value_heads": 1,
        "mlp_bias": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "smollm-yarn": SMOLLM
    | {
        "num_key_value_heads": 3,
        "num_attention_heads": 3,
        "num_hidden_layers": 4,
        "no_rope_layers": None,
        "rope_parameters": {"rope_type": "yarn", **TRAINED},
    },
    "bart": BART,
    "bart-scaled": SCALED,
    "bart-untied": BART | {"tie_word_embeddings": False},
    "bart-relu": BART | {"activation_function": "relu"},
    "mbart": SCALED,
    "m2m": BART | {"activation_function": "relu"},
    "m2m-unscaled": BART | {"scale_embedding": False, "pad_token_id": 0, "tie_word_embeddings": False},
    "pegasus": SCALED | {"activation_function": "relu"},
    "marian": SCALED | {"activation_function": "swish", "decoder_vocab_size": VOCABULARY},
    "marian-unshared": BART | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY},
    "t5": T5,
    "t5-gated": T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "t5-silu": T5 | {"feed_forward_proj": "gated-silu"},
    "mt5": T5,
}
DECODERS = tuple(name for name in GENERATORS if CLASSES[name.split("-")[0]][0].endswith(("LMHeadModel", "CausalLM")))


def build(name: str, **config: Any) -> Any:
    """Return the torch model `name` in evaluation mode; its every tensor is random and large enough to matter."""
    import torch
    import transformers

    model_class, config_class = CLASSES[name.split("-")[0]]
    # Its other attention leaves GPT-2's switches out of account.
    settings = GENERATORS[name] | {"attn_implementation": "eager"} | config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**settings)).eval()
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if "relative_attention_bias" in key:
                    parameter.normal_(0, 2)
                elif parameter.dim() == 1:
                    parameter.add_(0.2 * torch.randn_like(parameter))
                elif "T5" not in model_class and parameter.requires_grad and "embed_positions" not in key:
                    parameter.mul_(4)
            bias = dict(model.named_buffers()).get("final_logits_bias")
            if bias is not None:
                bias.normal_()
    return model


def save(folder: Path, model: Any, **options: Any) -> Checkpoint:
    """Save `model` in `folder` as save_pretrained writes it."""
    model.save_pretrained(folder, **options)
    return checkpoint(folder)


def checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder`, which needs no tokenizer here."""
    return Checkpoint(str(folder), folder, None, read_config(folder), find_weights(folder))
