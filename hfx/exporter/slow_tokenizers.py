"""Fast tokenizers for checkpoints that have none: built from SentencePiece and vocabulary files, or from bytes alone.

They split and number a text as the Python tokenizers of transformers do, which call the sentencepiece library. What
transformers 5 builds from such files by itself differs from that in white space, and for DeBERTa in most of Unicode.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hfx.exporter.config_file import read_json

SPACE = "▁"  # SentencePiece's space
MODELS = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "sentencepiece.model")
MARIAN_MODELS = ("source.spm", "target.spm")
NUMBER_COMMA = re.compile("[0-9],$")
NEVER_IN_TEXT = -100.0  # ALBERT's own score for pieces that its Python tokenizer splits again
# Non-characters, which no text has: before a token that no text may become; for an unknown language; for several
# characters that no piece has.
HIDDEN, UNKNOWN_CODE, UNKNOWN_RUN = "\ufdd0", "\ufdd1", "\ufdd2"
FIRST_CODE = 0x10F000  # private characters, one for each language that a text can begin with
LANGUAGES = ("src_lang", "tgt_lang")
LONGEST = 1000  # spaces at the beginning of an answer
USER_DEFINED = 4  # types of pieces
UNIGRAM = 1  # type of model
NO_TEXT = (2, 3)  # the unknown piece, and control pieces
CODE = ">>[\\s\\S]*?<<"  # Marian's target language, at the beginning of a text


def as_fast(tokenizer: Any, folder: Path) -> Any:
    """`tokenizer`, loaded by transformers from `folder` that has no tokenizer.json, as a fast one of the same ids.

    A Python tokenizer of which nothing is known is returned as it is.
    """
    build = PYTHON_TOKENIZERS.get(type(tokenizer).__name__)
    if build is not None:
        return _wrapped(build(tokenizer, folder), tokenizer)
    model = next((folder / name for name in MODELS if (folder / name).is_file()), None)
    if tokenizer.is_fast and model is not None:
        tokenizer._tokenizer = _sentencepiece(tokenizer, read_model(model))
    return tokenizer


def read_model(file: Path) -> Any:
    """The SentencePiece model (a ModelProto) in `file`. Raises google.protobuf's DecodeError."""
    from transformers.convert_slow_tokenizer import import_protobuf

    model = import_protobuf().ModelProto()
    model.ParseFromString(file.read_bytes())
    return model


def damaged_model(folder: Path) -> str | None:
    """The name of a file in `folder` that should be a SentencePiece model and is none, as a pointer of git-lfs."""
    from google.protobuf.message import DecodeError

    for name in (*MODELS, *MARIAN_MODELS):
        try:
            if (folder / name).is_file() and not read_model(folder / name).pieces:
                return name
        except DecodeError:
            return name
    return None


def _sentencepiece(tokenizer: Any, model: Any) -> Any:
    """The tokenizer that transformers 5 has built from `model`, with SentencePiece's own way to read a text."""
    built = tokenizer.backend_tokenizer
    symbols = {piece.piece for piece in model.pieces if piece.type == USER_DEFINED}
    symbols -= set(tokenizer.special_tokens_map.values())
    has_bytes = model.trainer_spec.byte_fallback
    normalizer = _normalizer(model.normalizer_spec, before=_steps_before(tokenizer))
    exact = _reading_words(_scored(tokenizer, has_bytes), model, normalizer)
    exact.decoder, exact.post_processor = _spelling({}) if has_bytes else built.decoder, built.post_processor
    _add_tokens(exact, [token for _, token in sorted(built.get_added_tokens_decoder().items())], symbols)
    return exact


def _scored(tokenizer: Any, has_bytes: bool) -> Any:
    """The pieces and their scores; with `has_bytes`, characters that no piece has become bytes.

    ALBERT splits a number from the comma behind it.
    """
    from tokenizers import models

    content = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    never = NEVER_IN_TEXT if type(tokenizer).__name__ == "AlbertTokenizer" else 0.0
    pieces = [(piece, score + never * bool(NUMBER_COMMA.search(piece))) for piece, score in content["vocab"]]
    return models.Unigram(pieces, content["unk_id"], byte_fallback=has_bytes)


def _steps_before(tokenizer: Any) -> list[Any]:
    """What the Python tokenizer of a class does with a text before SentencePiece reads it."""
    from tokenizers import Regex, normalizers

    name = type(tokenizer).__name__
    steps: list[Any] = []
    if name == "AlbertTokenizer":
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not tokenizer.keep_accents:
            steps += [normalizers.NFKD(), normalizers.Replace(Regex(_all(unicodedata.combining)), "")]
        steps.append(normalizers.Replace(Regex(f"{_all(str.isspace)}+"), " "))
    if name in ("AlbertTokenizer", "DebertaV2Tokenizer") and tokenizer.do_lower_case:
        steps.append(normalizers.Lowercase())
    return steps


def _all(is_one: Callable[[str], Any]) -> str:
    """The pattern of a character for which `is_one` holds."""
    return _one_of(filter(is_one, map(chr, range(sys.maxunicode + 1))))


def _one_of(characters: Iterable[str], none: bool = False) -> str:
    """The pattern of one (or with `none` of none) of `characters`."""
    return f"[{'^' * none}" + "".join(f"\\x{{{ord(character):x}}}" for character in sorted(characters)) + "]"


def _spelling(replaced: Mapping[str, str]) -> Any:
    """Tokens to text: characters that stand for others, spaces, bytes."""
    from tokenizers import decoders

    steps = [decoders.Replace(character, text) for character, text in {**replaced, SPACE: " "}.items()]
    return decoders.Sequence([*steps, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", LONGEST, 0)])


def _normalizer(spec: Any, before: Sequence[Any] = (), after: Sequence[Any] = (), begins: str = "") -> Any:
    """What SentencePiece does with a text, with steps before and after its table of characters.

    A text may begin with a character of the pattern `begins`, behind which its first word is.
    """
    from tokenizers import Regex, normalizers

    steps = list(before)
    if spec.precompiled_charsmap:
        # The library applies the table to a letter with its marks: of such that the table has not as a whole, it loses
        # some where the letter is in the table.
        if spec.name.startswith("nmt"):
            steps.append(normalizers.Replace("\ufffd", " "))
        steps += [
            normalizers.NFKC() if "nfkc" in spec.name else normalizers.NFC(),
            normalizers.Precompiled(spec.precompiled_charsmap),
        ]
    steps += after
    if spec.remove_extra_whitespaces:
        for pattern, content in ((r"\A +", ""), (rf"[ {SPACE}]+\z", ""), (" {2,}", " ")):
            steps.append(normalizers.Replace(Regex(pattern), content))
    if spec.add_dummy_prefix:
        first = f"(?:\\A(?!{begins})|(?<=\\A{begins}))" if begins else r"\A"
        steps.append(normalizers.Replace(Regex(f"{first}(?=[\\s\\S])"), SPACE))
    return normalizers.Sequence(steps)


def _reading_words(pieces: Any, model: Any, normalizer: Any) -> Any:
    """A tokenizer of `pieces` that reads word by word, where no piece of `model` is longer than a word.

    Words read one by one then have the pieces of the whole text.
    """
    from tokenizers import Tokenizer, pre_tokenizers

    exact = Tokenizer(pieces)
    exact.normalizer = normalizer
    are_words = not any(SPACE in piece.piece[1:] for piece in model.pieces)
    exact.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=are_words)
    return exact


def _add_tokens(exact: Any, tokens: Sequence[Any], left_out: set[str]) -> None:
    for token in tokens:
        if token.content not in left_out:
            (exact.add_special_tokens if token.special else exact.add_tokens)([token])


def _wrapped(exact: Any, tokenizer: Any) -> Any:
    """A fast tokenizer with the settings of the Python one."""
    from transformers import PreTrainedTokenizerFast

    special = set(tokenizer.all_special_tokens)
    added = [token for _, token in sorted(tokenizer.added_tokens_decoder.items())]
    for token in added:
        token.special = token.special or token.content in special
    _add_tokens(exact, added, set())
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return PreTrainedTokenizerFast(
        tokenizer_object=exact,
        model_max_length=tokenizer.model_max_length,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        clean_up_tokenization_spaces=bool(tokenizer.clean_up_tokenization_spaces),
        **roles,
        **{name: tokenizer.init_kwargs[name] for name in LANGUAGES if tokenizer.init_kwargs.get(name)},
    )


def _ending(tokenizer: Any, pair: str) -> Any:
    from tokenizers import processors

    end = tokenizer.eos_token
    return processors.TemplateProcessing(
        single=["$A", end], pair=pair.replace("</s>", end).split(), special_tokens=[(end, tokenizer.eos_token_id)]
    )


def _marian(tokenizer: Any, folder: Path) -> Any:
    """Pieces of source.spm under the ids of vocab.json; a piece that has no id there is never chosen.

    As in transformers, a text may begin with a language (>>fra<<), one that the model has not is an unknown token, and
    a character that only the target's pieces have is a token where it stands alone.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    model, ids = read_model(folder / "source.spm"), read_json(folder / "vocab.json")
    codes = {chr(FIRST_CODE + i): token for i, token in enumerate(token for token in ids if re.fullmatch(CODE, token))}
    begins = f"[{''.join(codes)}{UNKNOWN_CODE}]"
    languages = [(rf"\A{re.escape(code)}", character) for character, code in codes.items()]
    steps = [
        *languages,
        (rf"\A{CODE}", UNKNOWN_CODE),
        (f"{_none_of(model, [SPACE, ' ', UNKNOWN_CODE, *codes])}{{2,}}", UNKNOWN_RUN),
        (rf"(?<=\A{begins}) +", ""),
    ]
    after = [normalizers.Replace(Regex(pattern), content) for pattern, content in steps]
    normalizer = _normalizer(model.normalizer_spec, after=after, begins=begins)
    exact = _reading_words(_numbered(model, ids, codes, tokenizer), model, normalizer)
    language = pre_tokenizers.Split(Regex(rf"\A{begins}"), "isolated")
    exact.pre_tokenizer = pre_tokenizers.Sequence([language, exact.pre_tokenizer])
    exact.decoder = _spelling({**codes, HIDDEN: ""})
    exact.post_processor = _ending(tokenizer, "$A $B </s>")
    return exact


def _none_of(model: Any, others: Sequence[str]) -> str:
    """The pattern of a character that is neither in a piece of `model` nor one of `others`."""
    known = {character for piece in model.pieces if piece.type not in NO_TEXT for character in piece.piece}
    return _one_of(known.union(others), none=True)


def _numbered(model: Any, ids: Mapping[str, int], codes: Mapping[str, str], tokenizer: Any) -> Any:
    """The pieces of `model` under `ids`; longer tokens that are none of them are hidden from texts."""
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in model.pieces if piece.type not in NO_TEXT}
    lowest = min(scores.values(), default=0.0)
    added = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    spelled = {token: token for token in scores.keys() | added} | {t: t for t in ids if len(t) == 1}
    spelled |= {code: character for character, code in codes.items()}
    best = dict.fromkeys(codes.values(), 0.0)
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("the ids in vocab.json are not 0, 1, 2 and so on")
    pieces = [(spelled.get(token, HIDDEN + token), best.get(token, scores.get(token, lowest))) for token in tokens]
    return models.Unigram(pieces, ids[str(tokenizer.unk_token)], byte_fallback=False)


def _byt5(tokenizer: Any, folder: Path) -> Any:
    """Bytes, each under its own id behind those of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from tokenizers.pre_tokenizers import ByteLevel

    spelled = sorted(ByteLevel.alphabet(), key=_byte)
    ids = {
        str(token): place for place, token in sorted(tokenizer.added_tokens_decoder.items()) if place < tokenizer.offset
    }
    ids |= {character: tokenizer.offset + byte for byte, character in enumerate(spelled)}
    exact = Tokenizer(models.BPE(ids, []))
    exact.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    exact.decoder = decoders.ByteLevel()
    exact.post_processor = _ending(tokenizer, "$A </s> $B </s>")
    return exact


def _byte(character: str) -> int:
    """The byte that a character of the byte-level alphabet stands for."""
    from hfx.python_backends.generation.detokenizer import token_bytes

    return token_bytes(character)[0]


def _m2m(tokenizer: Any, folder: Path) -> Any:
    """Pieces of the SentencePiece model under the ids of vocab.json, and tokens for the languages behind them."""
    from tokenizers import processors

    model, ids = read_model(folder / "sentencepiece.bpe.model"), read_json(folder / "vocab.json")
    unigram = model.trainer_spec.model_type == UNIGRAM
    pieces = _numbered(model, ids, {}, tokenizer) if unigram else _merged(model, ids)
    exact = _reading_words(pieces, model, _normalizer(model.normalizer_spec))
    exact.decoder = _spelling({HIDDEN: ""})
    exact.add_special_tokens(list(tokenizer.lang_token_to_id))  # numbered in this order, as in Python
    language, end = tokenizer.convert_ids_to_tokens(tokenizer.cur_lang_id), tokenizer.eos_token
    exact.post_processor = processors.TemplateProcessing(
        single=[language, "$A", end],
        pair=[language, "$A", "$B", end],
        special_tokens=[(language, tokenizer.cur_lang_id), (end, tokenizer.eos_token_id)],
    )
    return exact


def _merged(model: Any, ids: Mapping[str, int]) -> Any:
    """Byte-pair pieces: of two neighbours, those that make the piece with the best score are merged first."""
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in model.pieces if piece.type not in NO_TEXT}
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        splits = ((piece[:place], piece[place:]) for place in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in ids and right in ids and piece in ids]
    return models.BPE(dict(ids), merges, unk_token="<unk>", fuse_unk=True)


PYTHON_TOKENIZERS: dict[str, Callable[[Any, Path], Any]] = {
    "MarianTokenizer": _marian,
    "ByT5Tokenizer": _byt5,
    "M2M100Tokenizer": _m2m,
}
