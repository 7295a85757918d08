"""Random checkpoints of GLiNER and GLiClass: a small BERT, and hfx's heads under the libraries' names of tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hfx.exporter.encoder.checkpoint.labelled import SPANS_ENCODER, TEXT_ENCODER, Gliclass, Gliner
from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.checkpoints.tiny_checkpoints import HIDDEN

POSITIONS = 512
SPANS = Gliner(hidden=24, width=4, words=40)
MARKERS = ("<<LABEL>>", "<<SEP>>")


def save_gliner(folder: Path) -> Path:
    """Save a span model with an LSTM, in the files of gliner."""
    from hfx.exporter.encoder.checkpoint.label_heads import SpanHead, Words, library_name

    head = SpanHead(Words(HIDDEN, SPANS.hidden, SPANS.layers), SPANS.hidden, SPANS.width, True)
    encoder, size, _ = _encoder(folder, SPANS.markers)
    sizes = {"hidden_size": SPANS.hidden, "max_width": SPANS.width, "max_len": SPANS.words, "vocab_size": size}
    _write(folder / "gliner_config.json", {"encoder_config": encoder.config.to_dict(), **sizes})
    return _weights(folder, SPANS_ENCODER, encoder, head, library_name)


def save_gliclass(folder: Path) -> Path:
    """Save a model that reads the text and each label at its separator, in the files of gliclass."""
    from hfx.exporter.encoder.checkpoint.text_heads import TextHead

    encoder, size, (marker, separator) = _encoder(folder, MARKERS)
    own = {"prompt_first": True, "hidden_size": HIDDEN, "extract_text_features": True, "vocab_size": size}
    own |= {"model_type": "GLiClass", "class_token_index": marker, "text_token_index": separator}
    _write(folder / "config.json", {"encoder_config": encoder.config.to_dict(), **own})
    head = TextHead(HIDDEN, Gliclass(hidden=HIDDEN, reads_separator=True))
    return _weights(folder, TEXT_ENCODER, encoder, head, lambda name: f"model.{name}")


def _encoder(folder: Path, markers: tuple[str, str]) -> tuple[Any, int, list[int]]:
    """Save a tokenizer with `markers`; return an encoder for it, its number of tokens, and the ids of the markers."""
    tokenizer = tiny_checkpoints.tokenizer()
    tokenizer.model_max_length = POSITIONS
    tokenizer.add_tokens(list(markers), special_tokens=True)
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": POSITIONS, "initializer_range": 0.3}
    encoder = tiny_checkpoints.bert("Model", **sizes)
    return encoder, len(tokenizer), tokenizer.convert_tokens_to_ids(list(markers))


def _write(file: Path, config: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(config), encoding="utf-8")


def _weights(folder: Path, prefix: str, encoder: Any, head: Any, name_of: Callable[[str], str]) -> Path:
    """Save the tensors of `encoder`, and drawn ones of `head`, with which a text has several entities."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(4)
    tensors = {prefix + name: each for name, each in encoder.state_dict().items()}
    tensors |= {name_of(name): torch.randn_like(each) * 0.2 for name, each in head.named_parameters()}
    save_file({name: each.contiguous() for name, each in tensors.items()}, folder / "model.safetensors")
    return folder
