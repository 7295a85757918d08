"""Small generators and tokenizers as transformers 4.57 writes them, with its own answers: the files in `written/`.

`python -m tests.transformers4.writing`, run with the extra `[optimum]`, writes them again. The files cover only what
versions 4 and 5 read differently: heads and tables, tied and not, the scale of T5's head, bad words, the clean-up of
byte-pair texts, and tokenizer.json files that differ from what their class usually has.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.rigs.checkpoints import tiny_checkpoints

WRITTEN = Path(__file__).parent / "written"
VOCABULARY = 24
SOURCE = [5, 6, 7, 8, 9, 1]
ANSWER = [0, 11, 12, 13]  # the decoder's input
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 1,
    "n_positions": 24,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    "d_kv": 8,
    "d_ff": 8,
    "num_layers": 1,
    "num_heads": 1,
    "relative_attention_num_buckets": 4,
    "relative_attention_max_distance": 8,
    "decoder_start_token_id": 0,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 8,
    **{f"{side}_{size}": 1 for side in ("encoder", "decoder") for size in ("layers", "attention_heads")},
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
UNTIED = {"tie_word_embeddings": False}
# Name -> (model class, config). "-head": beside the tied table another head is stored, which 4.57 overwrites.
CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2-head": ("GPT2LMHeadModel", GPT2),
    "gpt2-untied": ("GPT2LMHeadModel", GPT2 | UNTIED),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-head": ("T5ForConditionalGeneration", T5),
    "t5-untied": ("T5ForConditionalGeneration", T5 | UNTIED),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "mt5-tied": ("MT5ForConditionalGeneration", T5 | {"tie_word_embeddings": True}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart-head": ("BartForConditionalGeneration", BART),
    "bart-untied": ("BartForConditionalGeneration", BART | UNTIED),
    "mbart-untied": ("MBartForConditionalGeneration", BART | UNTIED),
    "pegasus-untied": ("PegasusForConditionalGeneration", BART | UNTIED),
    "marian-untied": ("MarianMTModel", BART | UNTIED),
}
# A prompt that is all of a bad word but its last token, and bad words that end it with the likeliest one.
PROMPT = [7, 9]
TEXT = "it 's n't so , is it ?"


def random_model(name: str) -> Any:
    """Return the model `name` with large random weights."""
    import torch
    import transformers

    kind, config = CHECKPOINTS[name]
    loader = getattr(transformers, kind)
    torch.manual_seed(3)
    model = loader(loader.config_class(**config)).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim > 1 and not ("embed_positions" in key and name.startswith(("marian", "pegasus"))):
                parameter.normal_(0, 0.4)
    return model


def logits(model: Any) -> list[list[float]]:
    """Return the model's own logits of SOURCE, or of ANSWER after it."""
    import torch

    decoder = {"decoder_input_ids": torch.tensor([ANSWER])} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: list[list[float]] = model(torch.tensor([SOURCE]), **decoder).logits[0].tolist()
    return found


def write(name: str, folder: Path) -> None:
    """Write the checkpoint `name`, and its writer's answers in answers.json."""
    import torch
    from safetensors.torch import load_file, save_file

    model = random_model(name)
    model.save_pretrained(folder)
    answers: dict[str, Any] = {"logits": logits(model)}
    if name.endswith("-head"):
        weights = folder / "model.safetensors"
        save_file(load_file(weights) | {"lm_head.weight": torch.randn(VOCABULARY, 8)}, weights, {"format": "pt"})
        read = type(model).from_pretrained(folder).eval()
        assert logits(read) == answers["logits"]
    if name == "gpt2":
        answers |= bad_words(model) | cleaned_text(folder)
    (folder / "answers.json").write_text(json.dumps(answers) + "\n", encoding="utf-8")


def bad_words(model: Any) -> dict[str, Any]:
    """Return bad words and the continuation of PROMPT without them.

    One bad word is the whole prompt and its likeliest next token.
    """
    import torch

    def continued(words: list[list[int]] | None) -> list[int]:
        ids = torch.tensor([PROMPT])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=6, do_sample=False,
                               pad_token_id=0, eos_token_id=None, bad_words_ids=words)  # fmt: skip
        new: list[int] = found[0, len(PROMPT) :].tolist()
        return new

    likeliest = continued(None)[0]
    words = [[*PROMPT, likeliest], [likeliest, 3], [PROMPT[-1], 4]]
    return {"bad_words": words, "continued": continued(words)}


def cleaned_text(folder: Path) -> dict[str, Any]:
    """Write a byte-pair tokenizer that cleans up, and return its text of TEXT's tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2TokenizerFast

    characters = sorted({*TEXT.replace(" ", "\u0120"), "<|endoftext|>"})
    made = Tokenizer(models.BPE({character: index for index, character in enumerate(characters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = GPT2TokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=True)
    tokenizer.save_pretrained(folder)
    ids = tokenizer(TEXT)["input_ids"]
    return {"ids": ids, "text": tokenizer.decode(ids)}


TEXTS = (
    "The Cat sat.",
    "a zebra  in Paris",
    "ran \n good",
    "\u00dcn\u00efc\u00f6de \U0001f600",
    "  lead",
    "a </s>b [SEP] c",
)
PAIR = "b film"


def word_pieces() -> Any:
    """Return BERT's tokenizer by its own class."""
    return tiny_checkpoints.tokenizer()


def without_end() -> Any:
    """Return BERT's tokenizer with a template that begins a text and does not end it."""
    from tokenizers import processors

    made = word_pieces()
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A $B", special_tokens=[("[CLS]", 2)]
    )
    return made


def other_normalizer() -> Any:
    """Return BERT's tokenizer with another normalizer."""
    from tokenizers import normalizers

    made = word_pieces()
    made.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("z", "a"), normalizers.Lowercase()])
    return made


def other_splitter() -> Any:
    """Return BERT's tokenizer, split at blanks, with an added token."""
    from tokenizers import pre_tokenizers

    made = word_pieces()
    made.add_tokens(["zebra"])
    made.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def bare_byte_level() -> Any:
    """Return RoBERTa's tokenizer without a template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import RobertaTokenizerFast

    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return RobertaTokenizerFast(tokenizer_object=made)


def lower_sentence_pieces() -> Any:
    """Return T5's tokenizer, which lowercases."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import T5TokenizerFast

    pieces = ["<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz.", "\u2581the", "\u2581cat", "\u2581in"]
    made = Tokenizer(models.Unigram([(piece, -float(len(piece) == 1)) for piece in pieces], 2))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return T5TokenizerFast(tokenizer_object=made, extra_ids=0)


TOKENIZERS = {
    made.__name__: made
    for made in (word_pieces, without_end, other_normalizer, other_splitter, bare_byte_level, lower_sentence_pieces)
}


def tokenized(tokenizer: Any) -> dict[str, Any]:
    """Return the ids of TEXTS alone and before PAIR, and the texts of the former."""
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    pairs = [tokenizer(text, PAIR)["input_ids"] for text in TEXTS]
    return {"ids": ids, "pairs": pairs, "texts": [tokenizer.decode(row) for row in ids]}


def write_tokenizer(name: str, folder: Path) -> None:
    """Write the tokenizer `name`, and its writer's results for TEXTS in answers.json."""
    from transformers import AutoTokenizer

    TOKENIZERS[name]().save_pretrained(folder)
    answers = tokenized(AutoTokenizer.from_pretrained(folder))
    (folder / "config.json").write_text('{"model_type": "bert", "transformers_version": "4.57.6"}\n', encoding="utf-8")
    (folder / "answers.json").write_text(json.dumps(answers) + "\n", encoding="utf-8")


def main() -> None:
    """Write all of CHECKPOINTS and TOKENIZERS again."""
    shutil.rmtree(WRITTEN, ignore_errors=True)
    for name in CHECKPOINTS:
        write(name, WRITTEN / name)
    for name in TOKENIZERS:
        write_tokenizer(name, WRITTEN / name)


if __name__ == "__main__":
    main()
