"""Fast tokenizers of real kinds, trained on the world's own text, the same ones on every run.

The vocabularies are small on purpose: rarer words fall into several pieces, as they do in real checkpoints. All
pieces are learned by byte-pair merges, because the library's WordPiece and Unigram trainers number (and weigh) pieces
in the order of a hash map that differs from run to run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.zoo import world
from tests.zoo.tokenizer_kinds import KINDS, TokenizerKind


def train(kind_name: str, texts: Iterable[str], vocab_size: int, max_tokens: int) -> Any:
    """A trained tokenizer of `kind_name`, wrapped in its transformers class, with model_max_length `max_tokens`."""
    import transformers

    kind = KINDS[kind_name]
    wrapper = getattr(transformers, kind.wrapper)
    options = (kind.options or {}) | kind.roles
    return wrapper(tokenizer_object=pipeline(kind, texts, vocab_size), model_max_length=max_tokens, **options)


def pipeline(kind: TokenizerKind, texts: Iterable[str], vocab_size: int) -> Any:
    """The trained `tokenizers.Tokenizer` of a kind, of at most `vocab_size` pieces."""
    tokenizer = _BUILDERS[kind.algorithm](kind, [*world.alphabet(), *texts], vocab_size)
    tokenizer.post_processor = _template(kind, tokenizer)
    return tokenizer


def _wordpiece(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=bool((kind.options or {}).get("do_lower_case")))
    # A piece may be needed twice, with and without "##", so half as many are merged as fit in.
    tokenizer = _merged(texts, vocab_size // 2, normalizer, pre_tokenizers.BertPreTokenizer())
    starts, insides = _pieces(tokenizer, texts)
    counts = starts + Counter({f"##{piece}": count for piece, count in insides.items()})
    characters = sorted(tokenizer.get_vocab(), key=lambda piece: (len(piece), piece))
    needed = [form for c in characters if len(c) == 1 for form in (c, f"##{c}")]
    vocab = dict.fromkeys([*kind.specials, *needed, *_commonest(counts)])
    ids = {piece: i for i, piece in enumerate(list(vocab)[:vocab_size])}
    tokenizer.model = models.WordPiece(ids, unk_token=kind.roles["unk_token"], max_input_chars_per_word=100)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _byte_bpe(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    from tokenizers import decoders, pre_tokenizers

    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = _merged(texts, vocab_size, None, splitter, kind.specials, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _unigram(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    return _sentencepiece(kind, texts, vocab_size, [])


def _unigram_lower(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    from tokenizers import normalizers

    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    return _sentencepiece(
        kind, texts, vocab_size, [*quotes, normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    )


def _sentencepiece(kind: TokenizerKind, texts: list[str], vocab_size: int, before: list[Any]) -> Any:
    """A Unigram model over the merged pieces; a piece's score is the logarithm of its share of the text."""
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    normalizer = normalizers.Sequence([*before, normalizers.Nmt(), normalizers.NFKC(), spaces])
    words = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    # No piece is to hold a letter and a stop, so punctuation splits words while pieces are learned, but not later.
    splitter = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation()])
    tokenizer = _merged(texts, vocab_size - len(kind.specials), normalizer, splitter)
    starts, insides = _pieces(tokenizer, texts)
    # Every piece counts once more than it was seen, so that letters swallowed by merges can still be used.
    counts = starts + insides + Counter(tokenizer.get_vocab().keys())
    total = math.log(counts.total())
    scored = [(special, 0.0) for special in kind.specials]
    scored += [(piece, math.log(counts[piece]) - total) for piece in _commonest(counts)]
    tokenizer.model = models.Unigram(scored, unk_id=kind.specials.index(kind.roles["unk_token"]))
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return tokenizer


def _merged(
    texts: list[str], vocab_size: int, normalizer: Any, splitter: Any, specials: Iterable[str] = (),
    alphabet: Iterable[str] = (),
) -> Any:  # fmt: skip
    """A byte-pair tokenizer of `vocab_size` pieces behind this normalizer and splitter."""
    from tokenizers import Tokenizer, models, trainers

    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(specials), initial_alphabet=list(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _pieces(tokenizer: Any, texts: list[str]) -> tuple[Counter[str], Counter[str]]:
    """How often each piece starts a word of the texts, and how often it stands within one."""
    starts: Counter[str] = Counter()
    insides: Counter[str] = Counter()
    for encoding in tokenizer.encode_batch(texts):
        before = None
        for piece, word in zip(encoding.tokens, encoding.word_ids, strict=True):
            (insides if word == before else starts)[piece] += 1
            before = word
    return starts, insides


def _commonest(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))


_BUILDERS = {"wordpiece": _wordpiece, "byte-bpe": _byte_bpe, "unigram": _unigram, "unigram-lower": _unigram_lower}


def _template(kind: TokenizerKind, tokenizer: Any) -> Any:
    """The post-processor that puts the special tokens around a text or a pair, as the published tokenizers do."""
    from tokenizers import processors

    if "cls_token" not in kind.roles:
        return _generator_template(kind, tokenizer)
    cls, sep = kind.roles["cls_token"], kind.roles["sep_token"]
    cls_id, sep_id = tokenizer.token_to_id(cls), tokenizer.token_to_id(sep)
    if kind.algorithm == "byte-bpe":
        return processors.RobertaProcessing((sep, sep_id), (cls, cls_id), trim_offsets=True, add_prefix_space=False)
    second = 1 if kind.pair_type_ids else 0
    middle = f"{sep}:0 {sep}:0" if kind.double_separator else f"{sep}:0"
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {middle} $B:{second} {sep}:{second}",
        special_tokens=[(cls, cls_id), (sep, sep_id)],
    )


def _generator_template(kind: TokenizerKind, tokenizer: Any) -> Any:
    """GPT-2 adds nothing to a text, T5 an end."""
    from tokenizers import processors

    if kind.algorithm == "byte-bpe":
        return processors.ByteLevel(trim_offsets=False)
    end = kind.roles["eos_token"]
    return processors.TemplateProcessing(
        single=f"$A {end}", pair=f"$A {end} $B {end}", special_tokens=[(end, tokenizer.token_to_id(end))]
    )
