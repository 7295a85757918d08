"""transformers' generation fields: reads them from a checkpoint, and lists how hfx treats each of them.

A field is supported, has no effect, or is unsupported. settings.py and the table of generation settings check the
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfx.exporter.config_file import read_json, read_optional_json
from hfx.exporter.source import Checkpoint
from hfx.exporter.transformers_versions import class_config, written_by_4
from hfx.python_backends.engine.generation_settings import DECODING
from hfx.tasks.transformers_settings import LACKING, RESULTS, WITHOUT_EFFECT

FILE = "generation_config.json"
# Settings that a checkpoint has under another name, that transformers lacks (such as seed), or that only a request may
# change (num_return_sequences).
RENAMED = frozenset(
    {
        "max_tokens", "min_tokens", "seed", "num_return_sequences", "frequency_penalty", "presence_penalty",
        "logit_bias",
    }
)  # fmt: skip
# transformers' fields whose public name is the same, each with the value that null stands for.
OFF: Mapping[str, Any] = {setting.name: setting.off for setting in DECODING if setting.name not in RENAMED}
LENGTHS = ("max_length", "max_new_tokens", "min_length", "min_new_tokens")
IDS = ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id")
ID_LISTS = ("forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens", "bad_words_ids")
# Ids for which config classes define default values.
CLASS_IDS = (*IDS, "forced_eos_token_id")
OTHERS = ("stop_strings", "num_return_sequences", "renormalize_logits")
FORCES_BOS = "force_bos_token_to_be_generated"  # in the config.json of BART's summarizers, until transformers 4.6
UNSERVED_SAMPLING = ("eta_cutoff", "top_h")  # fields of LACKING that are only read when tokens are sampled
# Fields that don't change the tokens, in a checkpoint also those of generate()'s other results.
IGNORED = WITHOUT_EFFECT | RESULTS.keys()
KNOWN = frozenset((*OFF, *LENGTHS, *IDS, *ID_LISTS, *OTHERS, *LACKING))


def read_fields(checkpoint: Checkpoint) -> tuple[dict[str, Any], str]:
    """Return transformers' generation fields of a checkpoint, and the name of the file that they come from.

    Without a generation_config.json, the fields are read from config.json, and token ids that config.json leaves out
    have the defaults of its config class, as in transformers 4. (transformers 5 has no such defaults, and would never
    end a text.)
    """
    file = checkpoint.folder / FILE
    if not file.is_file():
        stated = {key: value for key, value in checkpoint.config.items() if key in KNOWN}
        size = vocabulary_size(checkpoint)  # no text contains an id beyond it
        ids = {name: getattr(class_config(checkpoint.model_type), name, None) for name in CLASS_IDS}
        known = {name: value for name, value in ids.items() if isinstance(value, int) and value < size}
        fields = _without_nulls(known | stated)
        if checkpoint.config.get(FORCES_BOS) and "bos_token_id" in fields:
            fields.setdefault("forced_bos_token_id", fields["bos_token_id"])
        return fields, "config.json"
    fields = {key: value for key, value in read_json(file).items() if key not in IGNORED}
    # null turns a field off in version 4 and leaves it to its default in version 5.
    return fields if settings_by_4(checkpoint) else _without_nulls(fields), FILE


def settings_by_4(checkpoint: Checkpoint) -> bool:
    """Return whether transformers 4 wrote the settings, as generation_config.json or else config.json states."""
    stated = read_optional_json(checkpoint.folder / FILE)
    return written_by_4(stated if "transformers_version" in stated else checkpoint.config)


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def vocabulary_size(checkpoint: Checkpoint) -> int:
    """Return the number of tokens in the vocabulary; 0 if the config's `vocab_size` is not an integer."""
    size = checkpoint.config.get("vocab_size")
    size = class_config(checkpoint.model_type).vocab_size if size is None else size
    return size if isinstance(size, int) else 0
