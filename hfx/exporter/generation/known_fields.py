"""transformers' fields of generation, in one table: which of them hfx has, which do nothing, and which it has not.

What a value may be is checked by settings.py and the table of generation settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx.python_backends.engine.generation_settings import DECODING, LACKING

# Settings that a checkpoint has under other names, or not at all.
RENAMED = frozenset({"max_tokens", "min_tokens", "seed", "num_return_sequences"})
# transformers' fields whose public name is their own, and what null means.
OFF: Mapping[str, Any] = {setting.name: setting.off for setting in DECODING if setting.name not in RENAMED}
LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")
IDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
ID_LISTS = ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
# Ids that the classes of configs have values of their own for.
CLASS_IDS = (*IDS, "forced_eos_token_id")
OTHERS = ("stop_strings", "num_return_sequences", "renormalize_logits")
# Fields that hfx has not, and the values with which they do nothing (null always does).
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **LACKING,
    "assistant_early_exit": (),
    "assistant_ensemble_weight": (),
    "constraints": (),
    "dola_layers": (),
    "force_words_ids": (),
    "forced_decoder_ids": (),
    "max_time": (),
    "prompt_lookup_num_tokens": (),
    "sequence_bias": (),
    "speculation_type": (),
    "token_healing": (False,),
    "use_mtp": (False,),
    "watermarking_config": (),
}
UNSERVED_SAMPLING = ("eta_cutoff", "top_h")  # fields of NEUTRAL that nothing reads where no token is drawn
# Fields that say where a config came from, what else generate() returns or how it computes, never which tokens.
WITHOUT_EFFECT = (
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "is_assistant",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "prefill_chunk_size",
    "remove_invalid_values",
    "return_dict_in_generate",
    "return_legacy_cache",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
)
KNOWN = frozenset((*OFF, *LENGTHS, *IDS, *ID_LISTS, *OTHERS, *NEUTRAL))
