"""Try a checkpoint's tokenizer on texts of many kinds, in a separate process, before it is used.

A tokenizer that is built from a SentencePiece model is compared with the sentencepiece library on these texts.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN, TOKENIZER_CONFIG, read_optional_json
from hfx.exporter.parity_texts import bundled_texts, edge_texts
from hfx.exporter.slow_tokenizers import (
    MARIAN_MODELS,
    MODELS,
    USER_DEFINED,
    WITH_FILE,
    model_file,
    pieces_read_otherwise,
    read_model,
    stand_ins,
    steps_before,
)
from hfx.exporter.source import Checkpoint
from hfx.exporter.tokenizer_trial import BYTES, Error, try_tokenizer

TOKENIZER_FILE = "tokenizer.json"
PROBE = "Ab 1, \u00e9\u4e16\U0001f600\u0001 qzxqzx"  # known, unknown, wide and control characters
TRIED_LENGTH = 512  # the edge cases are those of a model that reads this many tokens
HARD_FOR_SENTENCEPIECE = (
    "a\u0302\u0323 e\u0323\u0302 \u1ea1\u0302 o\u031b\u0323\u0301 \u0323\u0302",  # marks in different orders
    "A\u20dd \uff21\u0301 \u24b7\u0308 a\U0001f3fb 1\ufe0f\u20e3 x\u200d",
    "\uff76\uff9e \uff8a\uff9f \u30db\u3099 \u1112\u1161\u11ab\u1100 \u0e01\u0e33 \u0915\u093c \u0958",
    "\uff5e \u3000 \u337f \ufdfa \u00df \u0130 \u0390 \u1e9e \u2126 \u212b",  # become one or several characters
    "  leading   inner \u00a0 trailing  ",
    "\u2581word \u2581\u2581 \u2581 word\u2581",
    "tabs\t\tand\r\nlines\n\n\r",
    "<0x41><0xE4> <0x0A>",
    "0,1,2, 3,000,000, ,4",
    "a" * 37 + " " + "ab" * 19 + " " * 11 + "\u754c" * 7,
)
# Seconds of processor time. Reading a vocabulary of 250,000 pieces takes 2 s, and the texts less than 1 s; compiling
# such a vocabulary, and comparing the result, takes 14 s.
SECONDS, LONG_SECONDS = 30, 180
ROUNDING = 1e-5  # the relative rounding error of sums of scores in float32
MOST_SYMBOLS = 50  # at most this many user-defined symbols of a model are tried
# The files whose texts may become tokens, or parts of texts.
BESIDE = (
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "config.json",
    "config_sentence_transformers.json",
)


def try_files(checkpoint: Checkpoint) -> None:
    """Try the checkpoint's tokenizer.json, and its SentencePiece models, which transformers may read beside it.

    Raises CheckpointUnsafe for a file that crashes or takes too much time or memory, and CheckpointCorrupt for a
    damaged file.
    """
    file = checkpoint.view / TOKENIZER_FILE
    models = sorted(path for path in checkpoint.view.iterdir() if path.suffix in (".model", ".spm"))
    needed = () if file.is_file() else (*MODELS, *MARIAN_MODELS)
    texts = [*_texts(), *_strings(checkpoint.folder)]
    for path in (file, *models) if file.is_file() else models:
        error, what = try_tokenizer(SECONDS, texts, path)
        if error == Error.UNREAD:  # for other files, transformers gives the reason
            if path.name in needed:
                raise CheckpointCorrupt(f"{checkpoint.folder / path.name} is not a SentencePiece model.", AGAIN)
        elif error:
            _refuse(checkpoint, error, what, SECONDS)


def try_built(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Try `tokenizer`, which transformers may have built otherwise than tokenizer.json says, or without this file.

    Raises CheckpointUnsafe and CheckpointCorrupt.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(tokenizer.backend_tokenizer.to_str())
        file.flush()
        tried(checkpoint, SECONDS, [*_texts(), *_strings(checkpoint.folder)], Path(file.name))


def tried(
    checkpoint: Checkpoint,
    seconds: int,
    texts: Sequence[str],
    file: Path,
    target: Path | None = None,
    count: int = 0,
    drawn: Sequence[list[int]] | None = None,
) -> Any:
    """Return the answer of try_tokenizer. Raises CheckpointUnsafe and CheckpointCorrupt."""
    error, answer = try_tokenizer(seconds, texts, file, target, count, drawn)
    if error:
        _refuse(checkpoint, error, answer, seconds)
    return answer


def compare_built(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Raise CheckpointUnsupported if a tokenizer that was built without a tokenizer.json differs from sentencepiece."""
    marian = checkpoint.view / MARIAN_MODELS[0]
    used = model_file(checkpoint.view) or (marian if marian.is_file() else None)
    if used is not None:
        _compare(checkpoint, tokenizer, used)


def _texts() -> list[str]:
    return [PROBE, *bundled_texts(), *edge_texts(TRIED_LENGTH), *HARD_FOR_SENTENCEPIECE]


def _strings(folder: Path) -> list[str]:
    """Return the names and texts in the small files beside a tokenizer: added tokens, prompts, labels, templates."""
    texts: list[str] = []
    pending: list[Any] = [read_optional_json(folder / name) for name in BESIDE]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            texts.append(value.encode(errors="ignore").decode())  # JSON may spell half a surrogate pair
        elif isinstance(value, dict | list):
            pending += [*value, *value.values()] if isinstance(value, dict) else value
    return texts


def _refuse(checkpoint: Checkpoint, error: Error, what: Any, seconds: int) -> NoReturn:
    """Raise CheckpointUnsafe or CheckpointCorrupt for an error that a trial of `seconds` ended with."""
    tokenizer = f"The tokenizer of {checkpoint.folder}"
    if error == Error.STOPPED:
        raise CheckpointUnsafe(
            f"{tokenizer} crashes, or takes {seconds} s or {BYTES >> 30} GB for texts that every export reads.",
            "It is hostile or broken, such as by a normalizer or a pattern; use a checkpoint that you trust.",
        )
    if error == Error.HAS_BAD_TOKEN:
        raise CheckpointUnsafe(
            f"{tokenizer} {what}: a text of some characters could take all memory.",
            "Remove the token from tokenizer.json and tokenizer_config.json, or set normalized, lstrip and rstrip to "
            "false.",
        )
    raise CheckpointCorrupt(
        f"{tokenizer} can't be read." if error == Error.UNREAD else f"{tokenizer} fails on a text: {what}.",
        "Save it again: AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER).",
    )


def _compare(checkpoint: Checkpoint, tokenizer: Any, file: Path) -> None:
    """Raise CheckpointUnsupported if `tokenizer` reads a text differently from the sentencepiece library with `file`.

    Texts that spell added tokens, which are no pieces, are left out.
    """
    from tokenizers import normalizers

    model, added = read_model(file), tokenizer.get_added_vocab()
    symbols = [piece.piece for piece in model.pieces if piece.type == USER_DEFINED][:MOST_SYMBOLS]
    texts = [*_texts(), *(f"{symbol} a{symbol}b {symbol}{symbol}" for symbol in symbols)]
    texts = [text for text in texts if not any(token in text for token in added)]
    before = normalizers.Sequence(steps_before(tokenizer))
    by_library = tried(checkpoint, SECONDS, [before.normalize_str(text) for text in texts], file)
    ids, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    ids |= {symbol: ids[character] for symbol, character in stand_ins(model).items() if character in ids}
    otherwise = pieces_read_otherwise(tokenizer, model, ids, file.parent)
    read_by = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    scores = dict(read_by["vocab"]) if read_by["type"] == "Unigram" else {}
    for text, pieces in zip(texts, by_library, strict=True):
        expected = [ids.get(piece, unknown) for piece in pieces]
        read = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if read == expected or not otherwise.isdisjoint(pieces):
            continue
        spelled = tokenizer.convert_ids_to_tokens
        if not _is_tie(spelled(read), spelled(expected), scores):
            raise CheckpointUnsupported(
                f"The tokenizer that hfx makes of {file.name} reads {text[:60]!r} otherwise than sentencepiece.",
                WITH_FILE,
            )


def _is_tie(read: Sequence[str], expected: Sequence[str], scores: Mapping[str, float]) -> bool:
    """Return whether both are best splits of one text, such as w, ww and ww, w for `www`, by sums in float32."""
    if not scores or "".join(read) != "".join(expected):
        return False
    totals = (sum(scores.get(piece, 0.0) for piece in pieces) for pieces in (read, expected))
    return math.isclose(*totals, rel_tol=ROUNDING)
