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
ONE_TYPE = SMALL | {"type_vocab_size": 1}
NARROW_EMBEDDING = SMALL | {"embedding_size": 16}
# Model type -> the fields of its config.
CONFIGS: dict[str, dict[str, Any]] = {
    "albert": NARROW_EMBEDDING,
    "bart": ENCODER_DECODER,
    "bert": SMALL,
    "big_bird": SMALL | {"attention_type": "original_full"},
    "camembert": ONE_TYPE,
    "convbert": SMALL | {"embedding_size": 32, "conv_kernel_size": 3},
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
    "electra": NARROW_EMBEDDING,
    "ernie": SMALL,
    "esm": SMALL | {"position_embedding_type": "rotary", "mask_token_id": 4},
    "eurobert": SMALL | {"num_key_value_heads": 2, "mask_token_id": 4},
    "flaubert": XLM,
    "gemma3_text": SMALL
    | {
        "num_key_value_heads": 2,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "use_bidirectional_attention": True,
    },
    "ibert": ONE_TYPE,
    "layoutlm": SMALL,
    "llama": SMALL | {"num_key_value_heads": 2},
    "mbart": ENCODER_DECODER,
    "megatron-bert": SMALL,
    "mistral": SMALL | {"num_key_value_heads": 2, "sliding_window": 24},
    "mobilebert": NARROW_EMBEDDING | {"intra_bottleneck_size": 16, "true_hidden_size": 16},
    "modernbert": SMALL | {"local_attention": 16, "global_attn_every_n_layers": 2},
    "mpnet": SMALL,
    "nomic_bert": SMALL,
    "nystromformer": SMALL | {"num_landmarks": 8, "segment_means_seq_len": 8, "conv_kernel_size": 5},
    "qwen2": SMALL | {"num_key_value_heads": 2},
    "qwen3": SMALL | {"num_key_value_heads": 2, "head_dim": 16},
    "rembert": SMALL | {"input_embedding_size": 16, "output_embedding_size": 16},
    "roberta": ONE_TYPE,
    "roberta-prelayernorm": ONE_TYPE,
    "roformer": SMALL | {"embedding_size": 32},
    "squeezebert": SMALL | {"embedding_size": 32},
    "xlm": XLM,
    "xlm-roberta": ONE_TYPE,
    "xlm-roberta-xl": ONE_TYPE,
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
