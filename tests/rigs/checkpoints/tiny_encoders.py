"""Encoders of a few kilobytes with random weights, one for each architecture that is traced."""

from __future__ import annotations

from typing import Any

VOCABULARY = 120
POSITIONS = 130
PAD = 1
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
ENCODER_DECODER = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "d_model": 32,
    **{f"{side}_{size}": 2 for side in ("encoder", "decoder") for size in ("layers", "attention_heads")},
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 48,
}
DISENTANGLED = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "max_relative_positions": -1,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "pooler_hidden_size": 32,
}
XLM = {
    "vocab_size": VOCABULARY,
    "emb_dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": PAD,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": POSITIONS,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "initializer_factor": 0.3,
}
ONE_TYPE = SMALL | {"type_vocab_size": 1}
NARROW_EMBEDDING = SMALL | {"embedding_size": 16}
# Model type -> the fields of its config.
CONFIGS: dict[str, dict[str, Any]] = {
    "albert": NARROW_EMBEDDING,
    "arcee": GROUPED,
    "bart": ENCODER_DECODER,
    "bert": SMALL,
    "big_bird": SMALL | {"attention_type": "original_full"},
    "biogpt": SMALL,
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 3, "n_head": 4, "pad_token_id": PAD},
    "camembert": ONE_TYPE,
    "convbert": SMALL | {"embedding_size": 32, "conv_kernel_size": 3},
    "ctrl": GPT2 | {"dff": 64},
    "data2vec-text": ONE_TYPE,
    "deberta": SMALL | DISENTANGLED,
    "deberta-v2": SMALL
    | DISENTANGLED
    | {"position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True, "conv_kernel_size": 3},
    "distilbert": {
        "vocab_size": VOCABULARY,
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": POSITIONS,
    },
    "doge": GROUPED,
    "electra": NARROW_EMBEDDING,
    "ernie": SMALL,
    "esm": SMALL | {"position_embedding_type": "rotary", "mask_token_id": 4},
    "esmc": SMALL,
    "eurobert": GROUPED | {"mask_token_id": 4},
    "exaone4": GROUPED | {"sliding_window": 24},
    "falcon": SMALL,
    "flaubert": XLM,
    "gemma": GROUPED | {"head_dim": 16},
    "gemma2": GROUPED | {"head_dim": 16, "sliding_window": 24},
    "gemma3_text": GROUPED
    | {
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "use_bidirectional_attention": True,
    },
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neo": {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "max_position_embeddings": POSITIONS,
        "window_size": 16,
        "pad_token_id": PAD,
        "eos_token_id": 2,
    },
    "gpt_neox": SMALL,
    "gptj": GPT2 | {"rotary_dim": 4},
    "granite": GROUPED,
    "gte": SMALL,
    "hunyuan_v1_dense": GROUPED | {"head_dim": 8},
    "ibert": ONE_TYPE,
    "jina_embeddings_v3": ONE_TYPE,
    "layoutlm": SMALL,
    "llama": GROUPED,
    "mbart": ENCODER_DECODER,
    "megatron-bert": SMALL,
    "ministral": GROUPED | {"sliding_window": 24, "head_dim": 8},
    "ministral3": GROUPED | {"sliding_window": 24},
    "mistral": GROUPED | {"sliding_window": 24},
    "mobilebert": NARROW_EMBEDDING | {"intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": SMALL | {"local_attention": 16, "global_attn_every_n_layers": 2},
    "modernbert-decoder": SMALL | {"local_attention": 16},
    "mpnet": SMALL,
    "mpt": {
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "n_heads": 4,
        "n_layers": 3,
        "max_seq_len": POSITIONS,
        "expansion_ratio": 2,
        "pad_token_id": PAD,
    },
    "mt5": T5,
    "mvp": ENCODER_DECODER,
    "nemotron": GROUPED,
    "nomic_bert": SMALL,
    "nystromformer": SMALL | {"num_landmarks": 8, "segment_means_seq_len": 8, "conv_kernel_size": 5},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": GROUPED | {"sliding_window": 24},
    "openai-gpt": GPT2,
    "opt": SMALL | {"ffn_dim": 64, "word_embed_proj_dim": 16},
    "persimmon": SMALL,
    "phi": SMALL,
    "phi3": GROUPED,
    "plbart": ENCODER_DECODER,
    "qwen2": GROUPED,
    "qwen3": GROUPED | {"head_dim": 16},
    "rembert": SMALL | {"input_embedding_size": 16, "output_embedding_size": 16},
    "roberta": ONE_TYPE,
    "roberta-prelayernorm": ONE_TYPE,
    "roformer": SMALL | {"embedding_size": 32},
    "seed_oss": GROUPED | {"head_dim": 8},
    "smollm3": GROUPED,
    "squeezebert": SMALL | {"embedding_size": 32},
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
    "t5": T5,
    "ultrabert": SMALL,
    "umt5": T5,
    "xlm": XLM,
    "xlm-roberta": ONE_TYPE,
    "xlm-roberta-xl": ONE_TYPE,
    "xmod": ONE_TYPE | {"languages": ["en_XX"], "default_language": "en_XX"},
}

HEADS = ("num_attention_heads", "num_key_value_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads")


def of_heads(model_type: str, count: int) -> dict[str, int]:
    """Return the config fields that give an architecture's attentions `count` heads."""
    return {name: count for name in HEADS if name in CONFIGS[model_type]}


def build(model_type: str, auto_class: str, **changes: Any) -> Any:
    """Return a model of `auto_class` in evaluation mode, or None if transformers has no such class for this model type.

    Its matrices are five times as large as usual, so that attention depends on the tokens.
    """
    import torch
    import transformers

    if model_type not in transformers.CONFIG_MAPPING:  # of a later release
        return None
    labels = {"num_labels": 2 if auto_class.endswith("QuestionAnswering") else 3}
    config = transformers.AutoConfig.for_model(model_type, **(CONFIGS[model_type] | labels | changes))
    loader = getattr(transformers, auto_class)
    if type(config) not in loader._model_mapping:
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = loader.from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(5.0)
            # That of padding is 0 at the start, and of published checkpoints often is not.
            model.get_input_embeddings().weight[config.pad_token_id or 0].normal_()
    return model
