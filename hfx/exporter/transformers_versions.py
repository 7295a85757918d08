"""Handle checkpoints that transformers 4 and 5 read differently: hfx reads one as the version that wrote it did.

hfx is developed and tested with transformers 5; optimum's exporter needs 4.57. These are the changes between the two
that affect checkpoints:

- T5: version 5 ties the tables of every T5, and stores the former meaning of `tie_word_embeddings` in
  `scale_decoder_outputs`.
- mT5: version 4 scales the hidden state before the head if the tables are tied; version 5 never does.
- A head that is stored beside a tied table: version 4 overwrites it, version 5 uses it if it differs.
- BART and similar models, untied: version 4 has one table for encoder and decoder, version 5 three tables.
- Ids that config.json leaves to its class: without a generation_config.json, version 5 generates as if there were none.
- null in generation_config.json: version 4 ignores the field, version 5 uses its default.
- max_length 20, which is the default: in version 4 it counts new tokens, in version 5 all tokens.
- A bad word may begin with the first token of the prompt from version 5.18 on.
- tokenizer.json: version 4 follows it; version 5 takes its vocabulary and rebuilds many tokenizers, with the
  normalizer, pre-tokenizer and template that are usual for their class.
- Token types of pairs: the generic tokenizer and those of ALBERT, RemBERT and RoFormer give them only in version 4.
- Byte-pair tokenizers: from version 5.7 on, spaces before punctuation stay, whatever clean_up_tokenization_spaces is.

MISREADINGS lists what some releases of version 5 read wrongly; such checkpoints are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.config_file import TOKENIZER_CONFIG, read_optional_json
from hfx.exporter.source import Checkpoint
from hfx.exporter.tensors import CheckpointTensors
from hfx.names import TOKEN_TYPE_IDS

Version = tuple[int, int]
OLD: Version = (4, 0)
UNTIED = ("gpt_neox", "llama", "ministral", "mistral", "qwen2", "qwen3")  # if config.json doesn't say otherwise
SCALED_BEFORE_THE_HEAD = ("t5", "mt5")
EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
TYPES_BY_4 = ("AlbertTokenizer", "RemBertTokenizer", "RoFormerTokenizer", "TokenizersBackend")
WRITTEN_BY_5 = "backend"  # a field of tokenizer_config.json
CLEAN_BPE = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"


def writer(config: Mapping[str, Any]) -> Version:
    """Return the major and minor version of transformers that wrote the config.json `config`; OLD if it names none."""
    return _parsed(config.get("transformers_version"))


def _parsed(version: object) -> Version:
    found = re.match(r"(\d{1,3})(?:\.(\d{1,3}))?(?:\.|$)", str(version))
    return (int(found[1]), int(found[2] or 0)) if found else OLD


def written_by_4(config: Mapping[str, Any]) -> bool:
    """Return whether the config.json `config` was written by transformers 4 or older."""
    return writer(config) < (5, 0)


def bad_words_at_start(config: Mapping[str, Any]) -> bool:
    """Return whether a bad word may begin with the first token of the prompt."""
    return writer(config) >= (5, 18)


def use_fused_attention(model: Any) -> None:
    """Have `model` compute attention by one operator, which keeps no scores (64 MB a layer for 1,024 tokens).

    Transformers 4 is left as it is, because its GPT-2 ignores scale_attn_weights in this operator.
    """
    if installed_major() > OLD[0] and model._supports_sdpa:
        model.set_attn_implementation("sdpa")


def installed_major() -> int:
    """Return the major version of the installed transformers."""
    return installed()[0]


def installed() -> Version:
    """Return the major and minor version of the installed transformers."""
    return _parsed(version("transformers"))


@dataclass(frozen=True)
class Misreading:
    """An error of transformers 5: `what` it does, before version `fixed`, to the checkpoints that it `concerns`."""

    what: str
    fixed: Version
    concerns: Callable[[Checkpoint], bool]


def _is_rotated_by_another_share(checkpoint: Checkpoint) -> bool:
    rotary = checkpoint.config.get("rope_parameters")
    share = rotary.get("partial_rotary_factor", 0.25) if isinstance(rotary, dict) else 0.25
    return checkpoint.model_type == "gpt_neox" and share != 0.25 and "rotary_pct" not in checkpoint.config


def _has_one_table_and_another_head(checkpoint: Checkpoint) -> bool:
    if checkpoint.model_type != "t5":
        return False
    tensors = CheckpointTensors(checkpoint)
    stored = [name for name in ("shared.weight", *EMBEDDINGS) if name in tensors]
    return len(stored) == 1 and stored[0] in EMBEDDINGS and tensors.differ("lm_head.weight", *stored)


MISREADINGS = (
    Misreading("it takes 0.25 for partial_rotary_factor", (5, 5), _is_rotated_by_another_share),
    Misreading(
        "it takes lm_head.weight for embeddings that are not in shared.weight", (5, 18), _has_one_table_and_another_head
    ),
)


def refuse_misread(checkpoint: Checkpoint, reader: Version | None = None) -> None:
    """Raise CheckpointUnsupported if version `reader`, or the installed version, would read `checkpoint` wrongly."""
    reader = reader or installed()
    for each in MISREADINGS:
        if (5, 0) <= reader < each.fixed and each.concerns(checkpoint):
            have, need = (".".join(map(str, numbers)) for numbers in (reader, each.fixed))
            raise CheckpointUnsupported(
                f"transformers {have} misreads {checkpoint.id}: {each.what}.", f"pip install 'transformers>={need}'"
            )


def tied_and_scaled(config: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether config.json ties the head to the embeddings, and whether a T5 scales the input of the head."""
    model_type, stated = config.get("model_type"), config.get("tie_word_embeddings")
    scales = model_type in SCALED_BEFORE_THE_HEAD
    if written_by_4(config):
        tied = stated if isinstance(stated, bool) else model_type not in ("mt5", *UNTIED)
        return tied, tied and scales
    scaled = model_type == "t5" and bool(config.get("scale_decoder_outputs", stated is not False))
    return scales or stated is True or (stated is not False and model_type not in UNTIED), scaled


def as_written(model: Any, checkpoint: Checkpoint, missing: set[str]) -> None:
    """Change a `model` that transformers 5 loaded to what transformers 4 would load, if that wrote `checkpoint`.

    Names of tensors that turn out to be shared are removed from `missing`.
    """
    if installed_major() < 5 or not written_by_4(checkpoint.config):
        return
    for name in [name for name in missing if name.endswith(EMBEDDINGS)]:
        root = name.removesuffix(next(filter(name.endswith, EMBEDDINGS)))
        shared = root + "shared.weight"
        if shared not in missing and shared in dict(model.named_parameters()):
            model.get_submodule(name.removesuffix(".weight")).weight = model.get_parameter(shared)
            missing.discard(name)
    tied, scaled = tied_and_scaled(checkpoint.config)
    if tied:
        model.tie_weights()
    if scaled and checkpoint.model_type == "mt5" and hasattr(model, "lm_head"):
        factor = float(model.config.d_model) ** -0.5
        model.lm_head.register_forward_pre_hook(lambda module, inputs: (inputs[0] * factor,))


def keep_tokenizer_file(tokenizer: Any, checkpoint: Checkpoint) -> None:
    """Make `tokenizer` follow tokenizer.json, if transformers 4 wrote the file and transformers 5 has read it.

    Two parts are taken from what version 5 built, as version 4 also changes them by tokenizer_config.json: BERT's
    normalizer (lower case, accents) and the byte-level pre-tokenizer (a space before the text).
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    file = checkpoint.view / "tokenizer.json"
    if installed_major() < 5 or not written_by_4(checkpoint.config) or not file.is_file():
        return
    if WRITTEN_BY_5 in read_optional_json(checkpoint.folder / TOKENIZER_CONFIG):
        return
    built, kept = tokenizer.backend_tokenizer, Tokenizer.from_file(str(file))
    for part, kind in (("normalizer", normalizers.BertNormalizer), ("pre_tokenizer", pre_tokenizers.ByteLevel)):
        if isinstance(getattr(kept, part), kind) and isinstance(getattr(built, part), kind):
            setattr(kept, part, getattr(built, part))
    known = {token.content for token in kept.get_added_tokens_decoder().values()}
    for _, token in sorted(built.get_added_tokens_decoder().items()):
        if token.content not in known:
            (kept.add_special_tokens if token.special else kept.add_tokens)([token])
    kept.encode_special_tokens = built.encode_special_tokens
    tokenizer._tokenizer = kept
    if hasattr(tokenizer, "set_src_lang_special_tokens"):  # version 4 sets them by tokenizer_config.json, too
        tokenizer.set_src_lang_special_tokens(tokenizer.src_lang)


@cache
def class_config(model_type: str) -> Any:
    """Return the config of a model type's class, with all defaults."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type)


def fill_class_ids(model: Any, names: Iterable[str], checkpoint: Checkpoint) -> None:
    """Fill in the ids `names` of `model.generation_config`, which version 5 loses without a generation_config.json."""
    if (checkpoint.view / "generation_config.json").is_file():
        return
    for name in names:
        value = getattr(model.config, name, None)
        if getattr(model.generation_config, name) is None and value is not None and value < model.config.vocab_size:
            setattr(model.generation_config, name, value)


def fill_unset(settings: Any) -> None:
    """Set the unset fields of a GenerationConfig to the values that generate() uses; version 5 leaves them None."""
    for name, value in getattr(settings, "_get_default_generation_params", dict)().items():
        if getattr(settings, name, None) is None:
            setattr(settings, name, value)


def cleans_up(tokenizer: Any, checkpoint: Checkpoint) -> bool:
    """Return whether decoded texts of `tokenizer` lose the spaces before punctuation."""
    if not tokenizer.clean_up_tokenization_spaces:
        return False
    byte_pairs = type(tokenizer.backend_tokenizer.model).__name__ == "BPE"
    return not byte_pairs or writer(checkpoint.config) < (5, 7) or bool(getattr(tokenizer, CLEAN_BPE, False))


def gives_types(tokenizer: Any, checkpoint: Checkpoint) -> bool:
    """Return whether `tokenizer` gives token types, which tell the texts of a pair apart; if not, all are 0."""
    config = read_optional_json(checkpoint.folder / TOKENIZER_CONFIG)
    by_4 = written_by_4(checkpoint.config) and WRITTEN_BY_5 not in config and config.get("model_input_names") is None
    return TOKEN_TYPE_IDS in tokenizer.model_input_names or (by_4 and type(tokenizer).__name__ in TYPES_BY_4)
