"""transformers' fields of generation: those of a checkpoint, and which of all hfx has, do nothing, or it has not.

What a value may be is checked by settings.py and the table of generation settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx.exporter.config_file import read_json, read_optional_json
from hfx.exporter.source import Checkpoint
from hfx.exporter.transformers_versions import class_config, written_by_4
from hfx.python_backends.engine.generation_settings import DECODING, LACKING

FILE = "generation_config.json"
# Settings that a checkpoint has under other names, or not at all.
RENAMED = frozenset(
    {
        "max_tokens", "min_tokens", "seed", "num_return_sequences", "frequency_penalty", "presence_penalty",
        "logit_bias",
    }
)  # fmt: skip
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
FORCES_BOS = "force_bos_token_to_be_generated"  # in config.json of BART's summarizers, until transformers 4.6
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


def read_fields(checkpoint: Checkpoint) -> tuple[dict[str, Any], str]:
    """transformers' generation fields of a checkpoint, and the name of the file that they are from.

    Where there is no generation_config.json, they are among the others of config.json, and the token ids that it
    leaves out are those of its class (transformers 4; version 5 has none then, and would never end a text).
    """
    file = checkpoint.folder / FILE
    if not file.is_file():
        stated = {key: value for key, value in checkpoint.config.items() if key in KNOWN}
        fields = _without_nulls(_class_ids(checkpoint) | stated)
        if checkpoint.config.get(FORCES_BOS) and "bos_token_id" in fields:
            fields.setdefault("forced_bos_token_id", fields["bos_token_id"])
        return fields, "config.json"
    fields = {key: value for key, value in read_json(file).items() if key not in WITHOUT_EFFECT}
    # null turns a field off in version 4 and leaves it to its default in version 5.
    return fields if settings_by_4(checkpoint) else _without_nulls(fields), FILE


def settings_by_4(checkpoint: Checkpoint) -> bool:
    """Whether transformers 4 wrote the settings, by their own file or else by config.json."""
    stated = read_optional_json(checkpoint.folder / FILE)
    return written_by_4(stated if "transformers_version" in stated else checkpoint.config)


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _class_ids(checkpoint: Checkpoint) -> dict[str, int]:
    """The ids of the config's class, those beyond the vocabulary left out: no text has them."""
    size = vocabulary_size(checkpoint)
    ids = {name: getattr(class_config(checkpoint.model_type), name, None) for name in CLASS_IDS}
    return {name: value for name, value in ids.items() if isinstance(value, int) and value < size}


def vocabulary_size(checkpoint: Checkpoint) -> int:
    """The number of tokens; 0 where the config states something else."""
    size = checkpoint.config.get("vocab_size")
    size = class_config(checkpoint.model_type).vocab_size if size is None else size
    return size if isinstance(size, int) else 0
