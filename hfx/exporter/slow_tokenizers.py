"""Build fast tokenizers for checkpoints that have none, from SentencePiece and vocabulary files, or from bytes alone.

They give a text the same ids as the Python tokenizers of transformers, which call the sentencepiece library. The
tokenizers that transformers 5 itself builds from such files differ in white space, and for DeBERTa in most of Unicode.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hfx.errors import CheckpointUnsupported
from hfx.exporter.config_file import TOKENIZER_CONFIG, read_json, read_optional_json
from hfx.exporter.sentencepiece_normalizer import SPACE, one_of
from hfx.exporter.sentencepiece_normalizer import normalizer as normalizer_of
from hfx.exporter.transformers_versions import written_by_4

MODELS = ("spiece.model", "sentencepiece.bpe.model", "spm.model", "sentencepiece.model")
MAYBE_MODEL = "tokenizer.model"  # Llama's; tiktoken has text files of this name
MARIAN_MODELS = ("source.spm", "target.spm")
NUMBER_COMMA = re.compile("[0-9],$")
NEVER_IN_TEXT = -100.0  # ALBERT's own score for pieces that its Python tokenizer splits again
# Non-characters, which texts don't have. They stand before a token that no text may become, for an unknown language,
# and for several characters that no piece has.
HIDDEN, UNKNOWN_CODE, UNKNOWN_RUN = "\ufdd0", "\ufdd1", "\ufdd2"
FIRST_CODE = 0x10F000  # the first private character; there is one for each language that a text can begin with
LANGUAGES = ("src_lang", "tgt_lang")
LONGEST = 1000  # spaces at the beginning of an answer
FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}*\K\u03a3(?!\p{Case_Ignorable}*\p{Cased})"
# Types of pieces. A text never has the unknown piece or control pieces.
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5
NO_TEXT = (2, 3)
UNIGRAM, BPE, CHARACTERS = 1, 2, 4  # types of models
USER_DEFINED_PENALTY = 0.1
UNKNOWN_PENALTY = 10  # the library scores a character without a piece by this much below the worst piece
WITH_FILE = "Use a checkpoint that has a tokenizer.json."
CODE = ">>[\\s\\S]*?<<"  # Marian's target language, at the beginning of a text


def as_fast(tokenizer: Any, folder: Path) -> Any:
    """Return a fast tokenizer with the ids of `tokenizer`, which transformers loaded from `folder`.

    `folder` has no tokenizer.json. A Python tokenizer of an unknown class is returned unchanged.
    """
    build = PYTHON_TOKENIZERS.get(type(tokenizer).__name__)
    if build is not None:
        return _wrapped(build(tokenizer, folder), tokenizer)
    model = model_file(folder)
    if tokenizer.is_fast and model is not None:
        tokenizer._tokenizer = _sentencepiece(tokenizer, read_model(model), _begins_once(tokenizer, folder))
    return tokenizer


def model_file(folder: Path) -> Path | None:
    """Return the SentencePiece model in `folder`; None without one. A model begins with the tag of its first piece."""
    for file in (folder / name for name in (*MODELS, MAYBE_MODEL)):
        if file.is_file() and (file.name != MAYBE_MODEL or file.read_bytes()[:1] == b"\n"):
            return file
    return None


def _begins_once(tokenizer: Any, folder: Path) -> bool:
    """Return whether SentencePiece's space is put only before the first word of a text (Llama).

    Version 4 of transformers also put it after special tokens, unless tokenizer_config.json said that `legacy` is
    false.
    """
    once = getattr(tokenizer.backend_tokenizer.pre_tokenizer, "prepend_scheme", "") == "first"
    stated = "legacy" in read_optional_json(folder / TOKENIZER_CONFIG)
    return once and (stated or not written_by_4(read_optional_json(folder / "config.json")))


def read_model(file: Path) -> Any:
    """Read the SentencePiece model (a ModelProto) in `file`. Raises CheckpointUnsupported for an unsupported kind."""
    from transformers.convert_slow_tokenizer import import_protobuf

    model = import_protobuf().ModelProto()
    model.ParseFromString(file.read_bytes())
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    refused = {
        "whole words as pieces": trainer.model_type not in (UNIGRAM, BPE, CHARACTERS),
        "spaces behind words": trainer.treat_whitespace_as_suffix,
        "spaces that are no pieces": not normalizer.escape_whitespaces,
        "pieces that are not used": any(piece.type == UNUSED for piece in model.pieces),
    }
    for kind in filter(refused.get, refused):
        raise CheckpointUnsupported(f"{file.name} is a SentencePiece model with {kind}.", WITH_FILE)
    return model


def _sentencepiece(tokenizer: Any, model: Any, begins_once: bool) -> Any:
    """Return the tokenizer that transformers 5 built from `model`, changed to read a text as SentencePiece does."""
    from tokenizers import normalizers, pre_tokenizers

    if getattr(tokenizer, "split_by_punct", False):
        raise CheckpointUnsupported("A SentencePiece model with split_by_punct is not read.", WITH_FILE)
    built = tokenizer.backend_tokenizer
    special = set(tokenizer.special_tokens_map.values())
    symbols = {piece.piece for piece in model.pieces if piece.type == USER_DEFINED} - special
    named = {symbol: character for symbol, character in stand_ins(model).items() if symbol in symbols}
    replaced = [normalizers.Replace(symbol, named[symbol]) for symbol in sorted(named, key=len, reverse=True)]
    spec = model.normalizer_spec
    normalizer = normalizer_of(spec, steps_before(tokenizer), replaced, has_prefix=not begins_once)
    tokens = [named.get(token, token) for token in _vocabulary(built)]
    build = _scored if model.trainer_spec.model_type == UNIGRAM else _merged
    exact = _reading_words(build(tokenizer, model, tokens), model, normalizer)
    if begins_once and spec.add_dummy_prefix:
        # Spaces are SPACE here: a space is put before the first stretch of the text only, and becomes SPACE.
        first = pre_tokenizers.Metaspace(" ", prepend_scheme="first", split=False)
        exact.pre_tokenizer = pre_tokenizers.Sequence([first, exact.pre_tokenizer])
    usual = not (named or model.trainer_spec.byte_fallback)
    spaces = LONGEST if spec.remove_extra_whitespaces else int(spec.add_dummy_prefix)
    spelled = {character: symbol for symbol, character in named.items()}
    exact.decoder = built.decoder if usual else _spelling(spelled, spaces)
    exact.post_processor = built.post_processor
    _add_tokens(exact, [token for _, token in sorted(built.get_added_tokens_decoder().items())], symbols)
    return exact


def _vocabulary(built: Any) -> list[str]:
    """Return the tokens of `built`, without added tokens, in the order of their ids."""
    pieces = json.loads(built.to_str())["model"]["vocab"]  # ids by piece, or pairs of a piece and its score
    return _in_order(pieces) if isinstance(pieces, dict) else [piece for piece, _ in pieces]


def _in_order(ids: Mapping[str, int]) -> list[str]:
    """Return the tokens in the order of their ids. Raises ValueError if these are not 0, 1, 2 and so on."""
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise ValueError("the ids in vocab.json are not 0, 1, 2 and so on")
    return tokens


def stand_ins(model: Any) -> dict[str, str]:
    """Return the character that stands for each user-defined symbol, so that it is not merged with its neighbours.

    A unigram model needs none: its symbols compete with other pieces.
    """
    if model.trainer_spec.model_type == UNIGRAM:
        return {}
    symbols = [piece.piece for piece in model.pieces if piece.type == USER_DEFINED]
    return {symbol: chr(FIRST_CODE + place) for place, symbol in enumerate(symbols)}


def _scored(tokenizer: Any, model: Any, tokens: Sequence[str]) -> Any:
    """Return a unigram model of `tokens` with their scores; with byte fallback if `model` has bytes as pieces.

    A user-defined symbol has the score that the library gives it. The name of a byte has a lower score than its
    characters, so that no text becomes it. For ALBERT, a number is split from the comma after it.
    """
    from tokenizers import models

    usual = [0.0, *(piece.score for piece in model.pieces if piece.type == NORMAL)]
    best, worst = max(usual), min(usual)
    scores = dict.fromkeys(tokens, 0.0)
    for piece in model.pieces:
        if piece.type == USER_DEFINED:
            scores[piece.piece] = len(piece.piece.encode()) * best - USER_DEFINED_PENALTY
        elif piece.type not in NO_TEXT:
            scores[piece.piece] = piece.score if piece.type == NORMAL else len("<0x00>") * (worst - UNKNOWN_PENALTY) - 1
    never = NEVER_IN_TEXT if type(tokenizer).__name__ == "AlbertTokenizer" else 0.0
    pieces = [(token, scores[token] + never * bool(NUMBER_COMMA.search(token))) for token in tokens]
    unknown = tokens.index(str(tokenizer.unk_token))
    return models.Unigram(pieces, unknown, byte_fallback=model.trainer_spec.byte_fallback)


def steps_before(tokenizer: Any) -> list[Any]:
    """Return the steps that the Python tokenizer of this class takes before SentencePiece reads a text."""
    from tokenizers import Regex, normalizers

    name = type(tokenizer).__name__
    steps: list[Any] = []
    if name == "AlbertTokenizer":
        steps += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        if not tokenizer.keep_accents:
            steps += [normalizers.NFKD(), normalizers.Replace(Regex(_all(unicodedata.combining)), "")]
        steps.append(normalizers.Replace(Regex(f"{_all(str.isspace)}+"), " "))
    if name in ("AlbertTokenizer", "DebertaV2Tokenizer") and tokenizer.do_lower_case:
        # Lowercase does not know the sigma at the end of a word, as Python's lower() does.
        steps += [normalizers.Replace(Regex(FINAL_SIGMA), "\u03c2"), normalizers.Lowercase()]
    return steps


def _all(is_one: Callable[[str], Any]) -> str:
    """Return the pattern of a character for which `is_one` is true."""
    return one_of(filter(is_one, map(chr, range(sys.maxunicode + 1))))


def _spelling(replaced: Mapping[str, str], spaces: int = LONGEST) -> Any:
    """Return a decoder that writes `replaced` characters, spaces and bytes, and drops the first `spaces` spaces."""
    from tokenizers import decoders

    steps = [decoders.Replace(character, text) for character, text in {**replaced, SPACE: " "}.items()]
    return decoders.Sequence([*steps, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", spaces, 0)])


def pieces_read_otherwise(tokenizer: Any, model: Any, ids: Mapping[str, int], folder: Path) -> set[str]:
    """Return the pieces of `model` that the Python tokenizer does not take unchanged from its library.

    They are pieces without an id in Marian's vocab.json, and numbers with a comma, which ALBERT splits.
    """
    pieces = {piece.piece for piece in model.pieces if piece.type not in NO_TEXT}
    without_id = pieces.difference(ids) if (folder / "vocab.json").is_file() else set()
    albert = type(tokenizer).__name__ == "AlbertTokenizer"
    return without_id | {piece for piece in pieces if albert and NUMBER_COMMA.search(piece)}


def _reading_words(pieces: Any, model: Any, normalizer: Any) -> Any:
    """Return a tokenizer of `pieces`, which reads word by word if no piece of `model` is longer than a word.

    Words read one by one then give the same pieces as the whole text.
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
    """Return the fast tokenizer `exact` with the settings of the Python tokenizer."""
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
    """Build Marian's tokenizer: pieces of source.spm with the ids of vocab.json; a piece without an id is never chosen.

    As in transformers, a text may begin with a language (>>fra<<), and a language that the model lacks is an unknown
    token. A character that only the target's pieces have is a token if it stands alone.
    """
    from tokenizers import Regex, normalizers, pre_tokenizers

    if tokenizer.separate_vocabs:
        raise CheckpointUnsupported(
            f"{TOKENIZER_CONFIG} has separate_vocabs: texts and answers have different ids.",
            "hfx exports Marian models with one vocabulary for both languages.",
        )
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
    normalizer = normalizer_of(model.normalizer_spec, after=after, begins=begins)
    exact = _reading_words(_numbered(model, ids, codes, tokenizer), model, normalizer)
    language = pre_tokenizers.Split(Regex(rf"\A{begins}"), "isolated")
    exact.pre_tokenizer = pre_tokenizers.Sequence([language, exact.pre_tokenizer])
    exact.decoder = _spelling({**codes, HIDDEN: ""})
    exact.post_processor = _ending(tokenizer, "$A $B </s>")
    return exact


def _none_of(model: Any, others: Sequence[str]) -> str:
    """Return the pattern of a character that is neither in a piece of `model` nor one of `others`."""
    known = {character for piece in model.pieces if piece.type not in NO_TEXT for character in piece.piece}
    return one_of(known.union(others), none=True)


def _numbered(model: Any, ids: Mapping[str, int], codes: Mapping[str, str], tokenizer: Any) -> Any:
    """Return a unigram model of the pieces of `model` with the given `ids`; other long tokens are hidden from texts."""
    from tokenizers import models

    scores = {piece.piece: piece.score for piece in model.pieces if piece.type not in NO_TEXT}
    lowest = min(scores.values(), default=0.0)
    added = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    spelled = {token: token for token in scores.keys() | added} | {t: t for t in ids if len(t) == 1}
    spelled |= {code: character for character, code in codes.items()}
    best = dict.fromkeys(codes.values(), 0.0)
    tokens = _in_order(ids)
    pieces = [(spelled.get(token, HIDDEN + token), best.get(token, scores.get(token, lowest))) for token in tokens]
    return models.Unigram(pieces, ids[str(tokenizer.unk_token)], byte_fallback=False)


def _byt5(tokenizer: Any, folder: Path) -> Any:
    """Build ByT5's tokenizer: each byte has an id of its own after the ids of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from hfx.python_backends.generation.detokenizer import BYTE_OF

    ids = {
        str(token): place for place, token in sorted(tokenizer.added_tokens_decoder.items()) if place < tokenizer.offset
    }
    ids |= {character: tokenizer.offset + byte for character, byte in BYTE_OF.items()}
    exact = Tokenizer(models.BPE(ids, []))
    exact.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    exact.decoder = decoders.ByteLevel()
    exact.post_processor = _ending(tokenizer, "$A </s> $B </s>")
    return exact


def _m2m(tokenizer: Any, folder: Path) -> Any:
    """Build M2M100's tokenizer: SentencePiece pieces with the ids of vocab.json, and then tokens for the languages."""
    from tokenizers import processors

    model, ids = read_model(folder / "sentencepiece.bpe.model"), read_json(folder / "vocab.json")
    unigram = model.trainer_spec.model_type == UNIGRAM
    pieces = _numbered(model, ids, {}, tokenizer) if unigram else _merged(tokenizer, model, _in_order(ids))
    exact = _reading_words(pieces, model, normalizer_of(model.normalizer_spec))
    exact.decoder = _spelling({HIDDEN: ""})
    exact.add_special_tokens(list(tokenizer.lang_token_to_id))  # numbered in this order, as in Python
    language, end = tokenizer.convert_ids_to_tokens(tokenizer.cur_lang_id), tokenizer.eos_token
    exact.post_processor = processors.TemplateProcessing(
        single=[language, "$A", end],
        pair=[language, "$A", "$B", end],
        special_tokens=[(language, tokenizer.cur_lang_id), (end, tokenizer.eos_token_id)],
    )
    return exact


def _merged(tokenizer: Any, model: Any, tokens: Sequence[str]) -> Any:
    """Return a byte-pair model of `tokens`: the neighbours that make the piece with the best score are merged first.

    User-defined symbols are not merged with others. In a model of characters, nothing is merged.
    """
    from tokenizers import models

    ids = {token: place for place, token in enumerate(tokens)}
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL and piece.piece in ids}
    merges = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        splits = ((piece[:place], piece[place:]) for place in range(1, len(piece)))
        merges += [(left, right) for left, right in splits if left in scores and right in scores]
    unknown, has_bytes = str(tokenizer.unk_token), model.trainer_spec.byte_fallback
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)


PYTHON_TOKENIZERS: dict[str, Callable[[Any, Path], Any]] = {
    "MarianTokenizer": _marian,
    "ByT5Tokenizer": _byt5,
    "M2M100Tokenizer": _m2m,
}
