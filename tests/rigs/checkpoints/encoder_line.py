"""The steps of a served encoder without a server: hfx's encoding, the torch model, hfx's postprocessing.

The model sees every sequence alone and unpadded, as in transformers' pipelines. Equal token ids then give equal logits,
so that tests can compare answers for equality instead of within a tolerance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hfx.python_backends.encoding import Encoder, Settings, make_encoder, tensors
from hfx.python_backends.errors import InvalidInput
from hfx.python_backends.tasks.postprocessing import Postprocessor, open_postprocessor

Tensors = dict[str, NDArray[Any]]

torch.set_num_threads(1)  # these models are tiny: more threads only wait for each other


def widths(max_length: int) -> tuple[int, ...]:
    table = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
    return (*(width for width in table if width < max_length), max_length)


def encoder_for(tokenizer: Any, task: str, folder: Path, **changed: Any) -> Encoder:
    """Return the encoder of a transformers tokenizer, read from the file that an export would write."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    max_length = changed.pop("max_length", tokenizer.model_max_length)
    known = {
        "task": task,
        "max_length": max_length,
        "widths": widths(max_length),
        "pad_id": tokenizer.pad_token_id,
        "truncation_side": tokenizer.truncation_side,
        "inputs": tuple(tokenizer.model_input_names),
        "question_first": tokenizer.padding_side == "right",
        "cls_id": tokenizer.cls_token_id,
    }
    return make_encoder(folder / "tokenizer.json", Settings(**(known | changed)))


def postprocessor_for(folder: Path, **settings: Any) -> Postprocessor:
    """Return the postprocessor of settings that are written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    return open_postprocessor(folder)


def encoded(encoder: Encoder, items: list[Any]) -> Tensors:
    """Return the tensors of one request; a refused item fails the test."""
    rows = encoder.encode(items)
    refused = [row for row in rows if isinstance(row, InvalidInput)]
    assert not refused, refused
    return tensors([[row for row in rows if not isinstance(row, InvalidInput)]], encoder.settings)[0]


def run_torch(model: Any, fed: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> Tensors:
    """Return the model's outputs `names` as the net gives them.

    The rows (and sequences) come first; a width is padded with zeros.
    """
    mask = fed["attention_mask"]
    leading, width = mask.shape[:-1], mask.shape[-1]
    per_token = not type(model).__name__.endswith("SequenceClassification")
    outputs: Tensors = {}
    for place in np.ndindex(*leading):
        length = int(mask[place].sum())
        if length == 0:
            continue
        feed = {key: fed[key][place][:length] for key in INPUTS if key in fed}
        for name, value in _run_one(model, feed, names).items():
            shape = (width, *value.shape[1:]) if per_token else value.shape
            array = outputs.setdefault(name, np.zeros((*leading, *shape), np.float32))
            array[place][: len(value)] = value
    return outputs


INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def _run_one(model: Any, feed: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> Tensors:
    with torch.no_grad():
        found = model(**{name: torch.tensor(array[None].astype(np.int64)) for name, array in feed.items()})
    return {name: found[name][0].float().numpy() for name in names}


def random_bert(head: str, tokenizer: Any, scale: float, seed: int, **config: Any) -> Any:
    """Return a Bert`head` that depends on every token of `tokenizer`; a larger `scale` makes it more certain."""
    import transformers

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    described = transformers.BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=tokenizer.model_max_length, initializer_range=scale,
        **sizes, **config,
    )  # fmt: skip
    return getattr(transformers, f"Bert{head}")(described).eval()


EDGE_TEXTS = (
    "",
    " ",
    " \t\n  ",
    "a",
    "I",
    "Hello, World!",
    "  leading and trailing  ",
    "emoji 😀👩‍👩‍👧‍👦 🇩🇪 done",
    "مرحبا بالعالم, שלום עולם",
    "e\u0301le\u0300ve a\u030a\u0323 n\u0303",
    "control\x00\x01\x02 characters\x7f\x85 and \ufeff bom",
    "tabs\tand\nnewlines\r\nhere",
    "数字と漢字が混ざった文章です。",
    "ﬁ ligature ﷺ and ½ ① Ａｌｐｈａ",
    "literal [CLS] and [SEP] <s> </s> <pad> [MASK] tokens",
    "supercalifragilisticexpialidocious" * 4,
    "x" * 500,
    "....!!!???,,,;;;" * 3,
    "zero\u200bwidth\u200djoin\u2060er \u202eoverride",
    "\ud7ff\ue000\ufffd\U0010ffff",
)


def check_equal_fills(found: Any, expected: Any, tolerance: float = 1e-6) -> None:
    """Check that filled masks equal those of transformers' pipeline, whose scores are summed in another order."""
    if isinstance(expected[0], list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check_equal_fills(one, other, tolerance)
        return
    for name in ("token", "token_str", "sequence"):
        assert [each[name] for each in found] == [each[name] for each in expected]
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], abs=tolerance)
