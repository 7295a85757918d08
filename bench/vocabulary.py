"""Tokenizers of real kinds whose vocabularies have the published number of rows, and in which every id has a text.

Pieces are learned from English that every installation has, so that prose is cut about as published vocabularies cut
it; the rows beyond them are words that no text is cut into. (A model with random weights writes any id, and an id
without a text would give no message to time.)
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

PIECES = 12_000  # learned at most; the more, the longer it takes
SPACE = {"byte-bpe": "\u0120", "metaspace": "\u2581", "wordpiece": ""}  # how a piece says that a blank is before it


@dataclass(frozen=True)
class Kind:
    """The transformers class of a tokenizer, its algorithm, its special tokens in order of their ids, their roles.

    `specials` come first, `last` is the last id; `options` are further ones of the class.
    """

    wrapper: str
    algorithm: str
    specials: tuple[str, ...]
    roles: dict[str, str]
    last: tuple[str, ...] = ()
    lower: bool = False
    options: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "bert": Kind(
        "BertTokenizerFast", "wordpiece", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
         "mask_token": "[MASK]"}, lower=True, options={"do_lower_case": True},
    ),
    "roberta": Kind(
        "RobertaTokenizerFast", "byte-bpe", ("<s>", "<pad>", "</s>", "<unk>"),
        {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
         "unk_token": "<unk>", "mask_token": "<mask>"}, last=("<mask>",),
    ),
    "gpt2": Kind(
        "GPT2TokenizerFast", "byte-bpe", (),
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"},
        last=("<|endoftext|>",),
    ),
    "t5": Kind(
        "PreTrainedTokenizerFast", "metaspace", ("<pad>", "</s>", "<unk>"),
        {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
}  # fmt: skip


def tokenizer(kind_name: str, size: int, max_tokens: int) -> Any:
    """A tokenizer of KIND_NAME with exactly SIZE ids, in its transformers class."""
    import transformers

    kind = KINDS[kind_name]
    made = _ALGORITHMS[kind.algorithm](kind, size)
    made.add_special_tokens(list(dict.fromkeys(kind.roles.values())))  # they are in the vocabulary already
    made.post_processor = _template(kind, made)
    if made.get_vocab_size() != size:
        raise ValueError(f"{kind_name} has {made.get_vocab_size()} ids instead of {size}")
    wrapper = getattr(transformers, kind.wrapper)
    return wrapper(tokenizer_object=made, model_max_length=max_tokens, **kind.roles, **kind.options)


@functools.cache
def corpus() -> tuple[str, ...]:
    """English prose of this installation: the language's own manual, and the texts that exports are compared on."""
    from pydoc_data.topics import topics  # type: ignore[import-not-found, unused-ignore]

    from hfx.exporter.parity_texts import bundled_texts

    lines = [line.strip() for text in topics.values() for line in text.splitlines()]
    return (*bundled_texts(), *(line for line in lines if line))


def _byte_bpe(kind: Kind, size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces, merges = _learned(None, split, sorted(pre_tokenizers.ByteLevel.alphabet()))
    made = Tokenizer(models.BPE(_ids(kind, pieces, size), merges))
    made.pre_tokenizer, made.decoder = split, decoders.ByteLevel()
    return made


def _metaspace(kind: Kind, size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    normal = normalizers.NFKC()
    words = pre_tokenizers.Metaspace(replacement=SPACE["metaspace"], prepend_scheme="always")
    # No piece is to hold a letter and a stop, so punctuation splits words while pieces are learned, but not later.
    pieces, merges = _learned(normal, pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation()]))
    made = Tokenizer(models.BPE(_ids(kind, pieces, size), merges, unk_token=kind.roles["unk_token"]))
    made.normalizer, made.pre_tokenizer = normal, words
    made.decoder = decoders.Metaspace(replacement=SPACE["metaspace"], prepend_scheme="always")
    return made


def _wordpiece(kind: Kind, size: int) -> Any:
    """Every piece that was learned may begin a word or stand within one."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    normal, split = normalizers.BertNormalizer(lowercase=kind.lower), pre_tokenizers.BertPreTokenizer()
    learned, _ = _learned(normal, split)
    pieces = [form for piece in learned for form in (piece, f"##{piece}")]
    made = Tokenizer(models.WordPiece(_ids(kind, pieces, size), unk_token=kind.roles["unk_token"]))
    made.normalizer, made.pre_tokenizer, made.decoder = normal, split, decoders.WordPiece(prefix="##")
    return made


_ALGORITHMS = {"byte-bpe": _byte_bpe, "metaspace": _metaspace, "wordpiece": _wordpiece}


def _learned(normalizer: Any, splitter: Any, alphabet: Sequence[str] = ()) -> tuple[list[str], list[Any]]:
    """The pieces of the corpus by byte-pair merges, shortest first, and the merges."""
    from tokenizers import Tokenizer, models, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = splitter
    if normalizer is not None:
        learner.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=PIECES, initial_alphabet=list(alphabet), show_progress=False)
    learner.train_from_iterator(corpus(), trainer)
    found = json.loads(learner.to_str())["model"]
    merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in found["merges"]]
    return sorted(found["vocab"], key=found["vocab"].get), merges


def _ids(kind: Kind, pieces: Sequence[str], size: int) -> dict[str, int]:
    """SIZE texts and their ids: special ones, pieces, and words that nothing is cut into."""
    blank = SPACE[kind.algorithm]
    texts = dict.fromkeys([*kind.specials, *(piece for piece in pieces if piece not in kind.last)])
    room = size - len(kind.last)
    if len(texts) > room:
        raise ValueError(f"{len(texts)} pieces for {room} ids")
    others = (f"{blank}x{number}" for number in count())
    while len(texts) < room:
        texts.setdefault(next(others))
    return {text: number for number, text in enumerate([*texts, *kind.last])}


def _template(kind: Kind, made: Any) -> Any:
    """The post-processor that puts the special tokens around a text or a pair, as the published tokenizers do."""
    from tokenizers import processors

    if "cls_token" not in kind.roles:
        if "pad_token" not in kind.roles:
            return processors.ByteLevel(trim_offsets=False)  # GPT-2 adds nothing
        end = kind.roles["eos_token"]
        special = [(end, made.token_to_id(end))]
        return processors.TemplateProcessing(single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=special)
    cls, sep = ((kind.roles[role], made.token_to_id(kind.roles[role])) for role in ("cls_token", "sep_token"))
    if kind.algorithm == "byte-bpe":
        return processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=False)
    return processors.TemplateProcessing(
        single=f"{cls[0]}:0 $A:0 {sep[0]}:0", pair=f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1",
        special_tokens=[cls, sep],
    )  # fmt: skip
