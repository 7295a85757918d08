"""The kinds of tokenizers that the architectures use: algorithm, special tokens, transformers class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
