"""Try a checkpoint's tokenizer on texts of many kinds, in a separate process, before it is used.

A tokenizer that is built from a SentencePiece model is compared with the sentencepiece library on these texts.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, CheckpointUnsupported
from hfx.exporter.config_file import AGAIN
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
from hfx.exporter.tokenizer_trial import BYTES, SECONDS, TrialFailed, TrialStopped, TrialUnread, try_tokenizer

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
ROUNDING = 1e-5  # the relative rounding error of sums of scores in float32
MOST_SYMBOLS = 50  # at most this many user-defined symbols of a model are tried
MOST_BLANKS, BLANK_LENGTH = 4, 5  # added tokens of white space that are tried, and how many of them in a row


def try_files(checkpoint: Checkpoint) -> None:
    """Try the checkpoint's tokenizer.json, and its SentencePiece models, which transformers may read beside it.

    Raises CheckpointUnsafe for a file that crashes or takes too much time or memory, and CheckpointCorrupt for a
    damaged file.
    """
    file = checkpoint.view / TOKENIZER_FILE
    models = sorted(path for path in checkpoint.view.iterdir() if path.suffix in (".model", ".spm"))
    needed = () if file.is_file() else (*MODELS, *MARIAN_MODELS)
    for path in (file, *models) if file.is_file() else models:
        try:
            _tokens(checkpoint, path, [*_texts(), *_blank_texts(path)])
        except TrialUnread:  # for other files, transformers gives the reason
            if path.name in needed:
                raise CheckpointCorrupt(
                    f"{checkpoint.folder / path.name} is not a SentencePiece model.", AGAIN
                ) from None


def try_built(checkpoint: Checkpoint, tokenizer: Any) -> None:
    """Try a tokenizer that was built from other files than a tokenizer.json.

    Raises CheckpointUnsafe, CheckpointCorrupt, and CheckpointUnsupported if it differs from the sentencepiece library.
    """
    if not tokenizer.is_fast:
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(tokenizer.backend_tokenizer.to_str())
        file.flush()
        _tokens(checkpoint, Path(file.name), [*_texts(), *_blank_texts(Path(file.name))])
    marian = checkpoint.view / MARIAN_MODELS[0]
    used = model_file(checkpoint.view) or (marian if marian.is_file() else None)
    if used is not None:
        _compare(checkpoint, tokenizer, used)


def _texts() -> list[str]:
    return [PROBE, *bundled_texts(), *edge_texts(TRIED_LENGTH), *HARD_FOR_SENTENCEPIECE]


def _blank_texts(file: Path) -> list[str]:
    """Return texts of sequences of the added white-space tokens in a tokenizer.json.

    The tokenizers library panics if one of these tokens takes the spaces before it and another the spaces after it.
    """
    try:
        tokens = json.loads(file.read_bytes())["added_tokens"]
        blanks = [token["content"] for token in tokens if token["content"].isspace()][:MOST_BLANKS]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return []  # no tokenizer, or one in another format: the trial reports it
    lengths = range(1, BLANK_LENGTH + 1) if blanks else ()
    return ["".join(("x", *row)) for length in lengths for row in product([*blanks, "x"], repeat=length)]


def _tokens(checkpoint: Checkpoint, file: Path, texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of `texts` by `file`. Raises TrialUnread, CheckpointUnsafe and CheckpointCorrupt."""
    try:
        return try_tokenizer(file, texts)
    except TrialStopped:
        raise CheckpointUnsafe(
            f"The tokenizer of {checkpoint.folder} crashes or takes {SECONDS} s or {BYTES >> 30} GB for short texts.",
            "It is hostile or broken, such as by a normalizer or a pattern; use a checkpoint that you trust.",
        ) from None
    except TrialFailed as error:
        raise CheckpointCorrupt(
            f"The tokenizer of {checkpoint.folder} fails on a text: {error}.",
            "Its added tokens may take each other's spaces (lstrip, rstrip). Save it again with others, or as it is: "
            "AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER).",
        ) from None


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
    by_library = _tokens(checkpoint, file, [before.normalize_str(text) for text in texts])
    ids, unknown = tokenizer.get_vocab(), tokenizer.unk_token_id
    ids |= {symbol: ids[character] for symbol, character in stand_ins(model).items() if character in ids}
    otherwise = pieces_read_otherwise(tokenizer, model, ids, file.parent)
    scores = _scores(tokenizer)
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


def _scores(tokenizer: Any) -> dict[str, float]:
    """Return the scores of the pieces if the model is a unigram model; none for other models."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return dict(model["vocab"]) if model["type"] == "Unigram" else {}


def _is_tie(read: Sequence[str], expected: Sequence[str], scores: Mapping[str, float]) -> bool:
    """Whether both are best splits of one text, such as w, ww and ww, w for `www`. The library adds up in float32."""
    if not scores or "".join(read) != "".join(expected):
        return False
    totals = (sum(scores.get(piece, 0.0) for piece in pieces) for pieces in (read, expected))
    return math.isclose(*totals, rel_tol=ROUNDING)
