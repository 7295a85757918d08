"""Fast tokenizers of the kinds that the architectures use, trained on the world's own text.

Owns the pipeline of each kind (normalizer, splitter, model, special tokens); knows nothing of models or tasks.
The vocabularies are small on purpose: rarer words fall into several pieces, as they do in real checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.zoo import world


@dataclass(frozen=True)
class TokenizerKind:
    """One kind of tokenizer: the transformers class that wraps it, its special tokens in order of their ids."""

    wrapper: str
    algorithm: str
    specials: tuple[str, ...]
    roles: dict[str, str]
    pair_type_ids: bool
    double_separator: bool = False
    options: dict[str, Any] | None = None


_BERT = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>",
    "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
_BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA_SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")

KINDS: dict[str, TokenizerKind] = {
    "bert": TokenizerKind(
        "BertTokenizerFast", "wordpiece", _BERT_SPECIALS, _BERT, pair_type_ids=True, options={"do_lower_case": True}
    ),
    "bert-cased": TokenizerKind(
        "BertTokenizerFast", "wordpiece", _BERT_SPECIALS, _BERT, pair_type_ids=True, options={"do_lower_case": False}
    ),
    "distilbert": TokenizerKind(
        "DistilBertTokenizerFast", "wordpiece",
        _BERT_SPECIALS, _BERT, pair_type_ids=True, options={"do_lower_case": True}
    ),
    "electra": TokenizerKind(
        "ElectraTokenizerFast", "wordpiece", _BERT_SPECIALS, _BERT, pair_type_ids=True, options={"do_lower_case": True}
    ),
    "mpnet": TokenizerKind(
        "MPNetTokenizerFast", "wordpiece", ("<s>", "<pad>", "</s>", "[UNK]", "<mask>"),
        _ROBERTA | {"unk_token": "[UNK]"}, pair_type_ids=False, double_separator=True, options={"do_lower_case": True},
    ),
    "roberta": TokenizerKind(
        "RobertaTokenizerFast", "byte-bpe", _ROBERTA_SPECIALS, _ROBERTA, pair_type_ids=False, double_separator=True
    ),
    "bart": TokenizerKind(
        "BartTokenizerFast", "byte-bpe", _ROBERTA_SPECIALS, _ROBERTA, pair_type_ids=False, double_separator=True
    ),
    "xlm-roberta": TokenizerKind(
        "XLMRobertaTokenizerFast", "unigram", _ROBERTA_SPECIALS, _ROBERTA, pair_type_ids=False, double_separator=True
    ),
    "albert": TokenizerKind(
        "AlbertTokenizerFast", "unigram-lower", ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        {"bos_token": "[CLS]", "eos_token": "[SEP]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "<pad>",
         "unk_token": "<unk>", "mask_token": "[MASK]"},
        pair_type_ids=True, options={"do_lower_case": True},
    ),
    "deberta-v2": TokenizerKind(
        "DebertaV2TokenizerFast", "unigram", ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
        {"bos_token": "[CLS]", "eos_token": "[SEP]"} | _BERT, pair_type_ids=True, options={"do_lower_case": False},
    ),
    "gpt2": TokenizerKind(
        "GPT2TokenizerFast", "byte-bpe", ("<|endoftext|>",),
        {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}, pair_type_ids=False,
    ),
    "t5": TokenizerKind(
        "T5TokenizerFast", "unigram", ("<pad>", "</s>", "<unk>"),
        {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}, pair_type_ids=False,
    ),
}  # fmt: skip


def train(kind_name: str, texts: Iterable[str], vocab_size: int, max_tokens: int) -> Any:
    """A trained tokenizer of `kind_name`, wrapped in its transformers class, with model_max_length `max_tokens`."""
    import transformers

    kind = KINDS[kind_name]
    tokenizer = _BUILDERS[kind.algorithm](kind, [*world.alphabet(), *texts], vocab_size)
    tokenizer.post_processor = _template(kind, tokenizer)
    wrapper = getattr(transformers, kind.wrapper)
    options = (kind.options or {}) | kind.roles
    return wrapper(tokenizer_object=tokenizer, model_max_length=max_tokens, **options)


def _wordpiece(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    lower = bool((kind.options or {}).get("do_lower_case"))
    tokenizer = Tokenizer(models.WordPiece(unk_token=kind.roles["unk_token"], max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=lower
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=list(kind.specials), show_progress=False)
    )
    return tokenizer


def _byte_bpe(kind: TokenizerKind, texts: list[str], vocab_size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(kind.specials), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(texts, trainer)
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
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [*before, normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(kind.specials),
        unk_token=kind.roles["unk_token"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


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
