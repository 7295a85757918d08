"""Complete translation checkpoints of a few kilobytes with random weights, one a family, with its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.rigs.checkpoints import generator_checkpoints, tiny_generators

LONGEST = 60
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
PIECES = (*SPECIALS, "▁", *"abcdefghijklmnopqrstuvwxyz.,")
CODES = ("en", "fr", "de", "zh", "ast")
MARIAN_CODES = (">>fra<<", ">>deu<<")
END = 2


@dataclass(frozen=True)
class Translator:
    """A model of tiny_generators with a tokenizer.

    `pairs` are the languages of requests, `target` is the language of the answers, and `target_by` is generate()'s
    argument for the target's token.
    """

    model: str
    tokenizer: Callable[[], Any]
    pairs: tuple[tuple[str, str], ...] = ()
    target: str | None = None
    target_by: Literal["forced_bos_token_id", "decoder_start_token_id"] = "forced_bos_token_id"


def _scores(pieces: Sequence[str]) -> list[tuple[str, float]]:
    return [(piece, -2.0 - 0.01 * place) for place, piece in enumerate(pieces)]


def mbart() -> Any:
    from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES, MBartTokenizer

    return MBartTokenizer(vocab=_scores([*PIECES, *FAIRSEQ_LANGUAGE_CODES, "<mask>"]), model_max_length=LONGEST)


def mbart50() -> Any:
    from transformers import MBart50Tokenizer

    pieces = ["<unk>", "<s>", "</s>", *PIECES[4:]]  # as in SentencePiece's file
    return MBart50Tokenizer(vocab=_scores(pieces), src_lang="fr_XX", model_max_length=LONGEST)


def nllb(**options: Any) -> Any:
    from transformers import NllbTokenizer

    ids = {piece: token_id for token_id, piece in enumerate(PIECES)}
    return NllbTokenizer(vocab=ids, model_max_length=LONGEST, tgt_lang="fra_Latn", **options)


def old_nllb() -> Any:
    return nllb(legacy_behaviour=True)


def _unigram(specials: Sequence[str], before: str) -> Any:
    """Return a tokenizer without a class of its own, with `before` in front of every text and the end behind it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    built = Tokenizer(models.Unigram(_scores(PIECES), unk_id=3))
    built.pre_tokenizer = pre_tokenizers.Metaspace()
    built.decoder = decoders.Metaspace()
    built.add_special_tokens([AddedToken(token, special=True) for token in specials])
    tokens = [token for token in (before, "</s>") if token]
    built.post_processor = processors.TemplateProcessing(
        single=f"{before} $A </s>".strip(), special_tokens=[(token, built.token_to_id(token)) for token in tokens]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=built, eos_token="</s>", pad_token="<pad>", unk_token="<unk>", model_max_length=LONGEST
    )


def m2m() -> Any:
    return _unigram([f"__{code}__" for code in CODES], "__en__")


def marian() -> Any:
    return _unigram(MARIAN_CODES, "")


TRANSLATORS = {
    "marian": Translator("marian", marian),
    "mbart": Translator(
        "mbart",
        mbart,
        (("en_XX", "ro_RO"), ("ro_RO", "en_XX"), ("zh_CN", "fr_XX")),
        "ro_RO",
        "decoder_start_token_id",
    ),
    "mbart50": Translator("mbart", mbart50, (("fr_XX", "uk_UA"), ("en_XX", "gl_ES"), ("sl_SI", "fr_XX")), "gl_ES"),
    "m2m": Translator("m2m", m2m, (("en", "fr"), ("zh", "ast"), ("fr", "en"))),
    "nllb": Translator("m2m", nllb, (("eng_Latn", "fra_Latn"), ("zho_Hans", "deu_Latn")), "fra_Latn"),
    "old-nllb": Translator("m2m", old_nllb, (("deu_Latn", "eng_Latn"), ("eng_Latn", "zul_Latn")), "fra_Latn"),
}


def token_of(tokenizer: Any, code: str) -> int:
    """Return the id of a language's token."""
    vocabulary = tokenizer.get_vocab()
    return int(vocabulary[code] if code in vocabulary else vocabulary[f"__{code}__"])


def _spelling(model: Any) -> Any:
    """Make `model` write letters rather than languages; a tied head would only repeat what it has read."""
    import torch

    with torch.no_grad():
        model.lm_head.weight[: len(SPECIALS)] *= 0.1
        model.lm_head.weight[len(PIECES) :] *= 0.1
        model.lm_head.weight[len(SPECIALS) : len(PIECES)] *= 10
    return model


def save(folder: Path, name: str) -> Path:
    """Save the checkpoint of one of TRANSLATORS in `folder`."""
    translator = TRANSLATORS[name]
    tokenizer = translator.tokenizer()
    size = len(tokenizer) - (name == "mbart")  # whose <mask> has no embedding, as in BART-large-CNN
    decoder = {"decoder_vocab_size": size, "decoder_start_token_id": 1} if name == "marian" else {}
    generation: dict[str, Any] = {"max_new_tokens": 12, "no_repeat_ngram_size": 2}
    if name == "marian":
        generation["bad_words_ids"] = [[1]]
    if translator.target and name != "nllb":  # whose tokenizer_config.json has it
        generation[translator.target_by] = token_of(tokenizer, translator.target)
    model = tiny_generators.build(translator.model, vocab_size=size, tie_word_embeddings=False, **decoder)
    return generator_checkpoints.save_whole(folder, _spelling(model), tokenizer, generation)
