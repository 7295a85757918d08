"""Checkpoints of a few kilobytes with random weights, for tests that need files and shapes only.

This module owns a small word-piece vocabulary and small configurations; the zoo owns trained checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

HIDDEN = 32
POSITIONS = 64
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = ("the", "cat", "dog", "sat", "ran", "good", "bad", "film", "in", "paris", "a", "b", "##s", "##ing", ".", "?")
SIZES = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 2 * HIDDEN,
    "max_position_embeddings": POSITIONS,
}


def tokenizer() -> Any:
    """Return a BertTokenizerFast of 21 tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *WORDS))}
    words = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return BertTokenizerFast(tokenizer_object=words, model_max_length=POSITIONS)


def bert(head: str = "ForSequenceClassification", seed: int = 0, **config: Any) -> Any:
    """Return a random Bert`head` in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(seed)
    settings = {"vocab_size": len(SPECIALS) + len(WORDS), **SIZES, **config}
    return getattr(transformers, f"Bert{head}")(transformers.BertConfig(**settings)).eval()


def cross_encoder() -> Any:
    """Return a random cross-encoder with distinct scores and the field by which sentence-transformers marks it."""
    mark = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.7.0"}
    return bert(num_labels=1, initializer_range=0.5, sentence_transformers=mark)


def save(folder: Path, model: Any, **options: Any) -> Path:
    """Save `model` and the tokenizer in `folder`, as save_pretrained writes them."""
    model.save_pretrained(folder, **options)
    tokenizer().save_pretrained(folder)
    return folder
