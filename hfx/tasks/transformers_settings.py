"""The settings of transformers' generate that are not in hfx's table of generation settings.

A setting is refused unless its value changes nothing, or has no effect on the tokens, or states a token of the model.
The exporter reads these tables for a checkpoint's generation_config.json, and the front for requests. A new setting of
transformers goes into one of them, or into the table in python_backends/engine/generation_settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Values = Mapping[str, tuple[Any, ...]]

# Settings that hfx lacks, with the values that change nothing. null never changes anything.
LACKING: Values = {
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "constraints": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "guidance_scale": (1,),
    "max_time": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0,),
    "prompt_lookup_num_tokens": (),
    "sequence_bias": (),
    "speculation_type": (),
    "token_healing": (False,),
    "top_h": (),
    "use_mtp": (False,),
    "watermarking_config": (),
}
# Other results of generate(), with the values that request none.
RESULTS: Values = dict.fromkeys(
    ("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"), (False,)
)
# Settings about the configuration's origin, and about how tokens are computed. They change no token.
WITHOUT_EFFECT = frozenset(
    {
        "_commit_hash", "_from_model_config", "assistant_confidence_threshold", "assistant_lookbehind", "cache_config",
        "cache_implementation", "compile_config", "continuous_batching_config", "disable_compile", "is_assistant",
        "low_memory", "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens",
        "num_assistant_tokens_schedule", "prefill_chunk_size", "remove_invalid_values", "return_legacy_cache",
        "target_lookbehind", "transformers_version", "use_cache",
    }
)  # fmt: skip
# Settings that a request may only have with the model's own value, and their names in generation.json.
OF_MODEL: Mapping[str, str] = {
    "bad_words_ids": "bad_words_ids",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "bos_token_id": "bos_token_id",
    "decoder_start_token_id": "decoder_start_token_ids",
    "eos_token_id": "eos_token_ids",
    "forced_bos_token_id": "forced_bos_token_id",
    "forced_eos_token_id": "forced_eos_token_id",
    "renormalize_logits": "renormalize_logits",
    "suppress_tokens": "suppress_tokens",
}
# The setting that does what a caller may want from one that is refused.
INSTEAD: Mapping[str, str] = {
    "bad_words_ids": "logit_bias",
    "begin_suppress_tokens": "logit_bias",
    "constraints": "regex",
    "decoder_start_token_id": "target_lang",
    "diversity_penalty": "num_beams",
    "encoder_no_repeat_ngram_size": "no_repeat_ngram_size",
    "encoder_repetition_penalty": "repetition_penalty",
    "eos_token_id": "stop",
    "eta_cutoff": "epsilon_cutoff",
    "exponential_decay_length_penalty": "length_penalty",
    "force_words_ids": "regex",
    "forced_bos_token_id": "target_lang",
    "max_time": "max_tokens",
    "num_beam_groups": "num_beams",
    "sequence_bias": "logit_bias",
    "suppress_tokens": "logit_bias",
    "top_h": "min_p",
}
