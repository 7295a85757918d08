"""A compiled tokenizer counts the tokens that the Python tokenizer counts, up to the model's length."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hfx.exporter.compiled_tokenizer import compile_tokenizer
from hfx.front.model_files import ModelFiles
from hfx.front.refusals import Refusal
from hfx.names import COMPILED_TOKENIZER, Task
from tests.zoo import tokenization

LINES = ("Anna went from Paris to the market in Berlin. The weather was awful!", "Don't you think it's a 'nice' day?")
MODEL: Any = SimpleNamespace(name="m", task=Task.FEATURE_EXTRACTION)
PIECES = ("weather", " ", "é", "漢字", "😀", "[SEP]", "\0", "\u0301", "unbelievably " * 40, "!?")


@pytest.fixture(params=[("bert", "right"), ("roberta", "left"), ("xlm-roberta", "right")])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The version folder of a model's tokenizing step."""
    kind, side = request.param
    made = tmp_path / "m_tokenize" / "1"
    made.mkdir(parents=True)
    backend = tokenization.train(kind, LINES, 300, 64).backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    (made / "tokenizer.json").write_text(backend.to_str(), encoding="utf-8")
    (made / "settings.json").write_text(json.dumps({"max_length": 20, "truncation_side": side}))
    return made


def count(folder: Path, texts: list[str]) -> int:
    return asyncio.run(ModelFiles(str(folder.parents[1])).count(MODEL, texts, lambda: False))


def test_counts_are_those_of_the_python_tokenizer(folder: Path) -> None:
    draw = random.Random(7)
    texts = ["", " ", *("".join(draw.choices(PIECES, k=draw.randrange(1, 60))) for _ in range(300))]
    expected = [count(folder, [text]) for text in texts[:40]] + [count(folder, texts)]
    (folder / COMPILED_TOKENIZER).write_bytes(compile_tokenizer(folder / "tokenizer.json"))
    (folder / "tokenizer.json").unlink()  # it is not read
    assert [count(folder, [text]) for text in texts[:40]] + [count(folder, texts)] == expected


def test_a_damaged_file_is_a_refusal(folder: Path) -> None:
    (folder / COMPILED_TOKENIZER).write_bytes(compile_tokenizer(folder / "tokenizer.json")[:-100])
    with pytest.raises(Refusal, match="can't be opened") as refused:
        count(folder, ["a"])
    assert refused.value.status == 501
