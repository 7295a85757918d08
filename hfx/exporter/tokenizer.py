"""Load a checkpoint's fast tokenizer, and check that it fits the files and the model.

It may have added tokens without an embedding in the model (BART-large-CNN's <mask>); texts with them are refused.

No remote code is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported, SourceError, UsageError
from hfx.exporter.config_file import TOKENIZER_CONFIG, read_optional_json
from hfx.exporter.load import first_lines
from hfx.exporter.quiet import quiet_libraries
from hfx.exporter.slow_tokenizers import as_fast
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer_checks import PROBE, TOKENIZER_FILE, compare_built, try_built, try_files
from hfx.exporter.transformers_versions import keep_tokenizer_file

# The keys by which a tokenizer's config can name files of its own.
TOKENIZER_FILE_KEYS = ("tokenizer_file", "vocab_file", "merges_file", "spm_file", "sp_model_file", "added_tokens_file")


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Return the checkpoint's fast tokenizer (transformers' PreTrainedTokenizerFast).

    All of its tokens have embeddings, except perhaps added tokens. Raises CheckpointCorrupt, CheckpointUnsafe or
    CheckpointUnsupported (for example, for a tokenizer in Python only).
    """
    import transformers

    loader: Any = transformers.AutoTokenizer
    _check_tokenizer_config(checkpoint.folder)
    file = checkpoint.view / TOKENIZER_FILE
    try_files(checkpoint)
    try:
        with quiet_libraries():
            tokenizer = loader.from_pretrained(
                checkpoint.view, local_files_only=True, trust_remote_code=False, use_fast=True
            )
            if not file.is_file():
                tokenizer = as_fast(tokenizer, checkpoint.view)
            if tokenizer.is_fast:
                keep_tokenizer_file(tokenizer, checkpoint)
                try_built(checkpoint, tokenizer)
                if not file.is_file():
                    compare_built(checkpoint, tokenizer)
            tokenizer(PROBE, verbose=False)
    except SourceError:
        raise
    except BaseException as error:  # Exceptions, and PanicException of tokenizers' Rust, which is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _tokenizer_error(checkpoint, error) from error
    if not tokenizer.is_fast:
        raise CheckpointUnsupported(
            f"{checkpoint.folder} has only a slow (Python) tokenizer, {type(tokenizer).__name__}.",
            "hfx serves tokenizers with a tokenizer.json; look for a checkpoint that has one.",
        )
    if tokenizer.split_special_tokens:
        raise CheckpointUnsupported(
            f"{checkpoint.folder / TOKENIZER_CONFIG} has split_special_tokens: texts never have special tokens.",
            "hfx takes a special token that a text spells for that token; set it to false and export.",
        )
    check_ids(checkpoint, tokenizer)
    return tokenizer


def _tokenizer_error(checkpoint: Checkpoint, error: BaseException) -> SourceError:
    from huggingface_hub.errors import StrictDataclassError

    folder, reason = checkpoint.folder, checkpoint.in_folder(first_lines(error))
    if isinstance(error, StrictDataclassError):  # about config.json, which AutoTokenizer reads first
        return CheckpointCorrupt(
            f"{folder / 'config.json'} can't be read by transformers: {reason}",
            "Correct or remove the named field.",
        )
    if "trust_remote_code" in str(error):
        return _wants_code(folder / TOKENIZER_CONFIG)
    return CheckpointCorrupt(
        f"The tokenizer of {folder} can't be loaded: {reason}",
        "Save it again: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER).",
    )


def _wants_code(file: Path) -> CheckpointUnsafe:
    return CheckpointUnsafe(
        f"{file} needs its own code (auto_map).",
        "hfx runs no remote code: save the tokenizer as a PreTrainedTokenizerFast.",
    )


def _is_known(tokenizer_class: str) -> bool:
    """Return whether transformers itself has the class; if not, version 5 reads tokenizer.json in a generic way."""
    import transformers

    return any(hasattr(transformers, tokenizer_class + ending) for ending in ("", "Fast"))


def _check_tokenizer_config(folder: Path) -> None:
    """Refuse a tokenizer class with its own code, and paths to files, which transformers would follow anywhere."""
    file = folder / TOKENIZER_CONFIG
    config = read_optional_json(file)
    if "AutoTokenizer" in (config.get("auto_map") or ()) and not _is_known(str(config.get("tokenizer_class"))):
        raise _wants_code(file)
    for key in TOKENIZER_FILE_KEYS:
        value = config.get(key)
        if not isinstance(value, str) or not Path(value).is_file():
            continue
        if not Path(value).resolve().is_relative_to(folder.resolve()):
            raise CheckpointUnsafe(
                f"{file} names a file outside the checkpoint ({key}: {value!r}).", f"Remove {key} from it."
            )


def check_ids(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Raise CheckpointCorrupt for ids without an embedding, except ids of added tokens that a text need not have."""
    size = vocab_size(checkpoint)
    required = {*tokenizer(PROBE, PROBE, verbose=False)["input_ids"], tokenizer.unk_token_id}
    optional = set(tokenizer.added_tokens_decoder) - required
    largest = max((token for token in tokenizer.get_vocab().values() if token not in optional), default=0)
    if largest >= size:
        raise CheckpointCorrupt(
            f"The tokenizer of {checkpoint.folder} has token ids up to {largest}, the model {size} embeddings.",
            "Use the tokenizer that the model was trained with, or resize its embeddings.",
        )


def vocab_size(checkpoint: Checkpoint) -> int:
    """Return the number of the model's embeddings, as config.json or the default of its class says."""
    from transformers import AutoConfig

    size = checkpoint.config.get("vocab_size")
    if not isinstance(size, int):
        view = checkpoint.home.view
        size = AutoConfig.from_pretrained(view, local_files_only=True, trust_remote_code=False).vocab_size
    return int(size)


def vocab_limit(checkpoint: Checkpoint, tokenizer: Any) -> int | None:
    """Return the number of the model's embeddings if `tokenizer` has ids beyond them, else None."""
    size = vocab_size(checkpoint)
    return size if max(tokenizer.get_vocab().values(), default=0) >= size else None


def pad_id(checkpoint: Checkpoint, tokenizer: Any) -> int:
    """Return the id with which rows are padded. Any id with an embedding would do, as no token attends to padding."""
    pad = tokenizer.pad_token_id
    return pad if pad is not None and pad < vocab_size(checkpoint) else 0


def with_embeddings(checkpoint: Checkpoint, tokenizer: Any, texts: Sequence[str]) -> list[str]:
    """Return those of `texts` whose tokens all have an embedding."""
    limit = vocab_limit(checkpoint, tokenizer)
    return [text for text in texts if not _beyond(tokenizer, text, limit)]


def require_embeddings(checkpoint: Checkpoint, tokenizer: Any, texts: Iterable[str]) -> None:
    """Raise UsageError for a text of --verify-data that has a token without an embedding in the model."""
    limit = vocab_limit(checkpoint, tokenizer)
    for text in texts:
        if beyond := _beyond(tokenizer, text, limit):
            token = tokenizer.convert_ids_to_tokens(beyond[0])
            raise UsageError(
                f"The model has no embedding of the token {token!r}, which a text of --verify-data has: {text[:80]!r}.",
                "Leave this text out.",
            )


def _beyond(tokenizer: Any, text: str, limit: int | None) -> list[int]:
    if limit is None:
        return []
    return [token for token in tokenizer(text, verbose=False)["input_ids"] if token >= limit]
