"""The process in which a foreign tokenizer is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hfx.exporter import tokenizer_trial
from hfx.process import JsonChild
from tests.rigs.checkpoints import tiny_checkpoints

pytestmark = pytest.mark.slow


def test_a_process_with_much_memory_tries_all_tokenizers_in_one_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux counts the memory of the process that starts another one as the other one's, too."""
    tiny_checkpoints.save(tmp_path, tiny_checkpoints.bert())
    started: list[JsonChild] = []

    def start(*arguments: Any, **options: Any) -> JsonChild:
        started.append(JsonChild(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(tokenizer_trial, "JsonChild", start)
    used = b"x" * (2 * tokenizer_trial.MOST_IDLE << 10)
    for _ in range(3):
        assert tokenizer_trial.try_tokenizer(10, ["a cat"], tmp_path / "tokenizer.json")[0] is None
    assert len(started) <= 1 and used  # none, if an earlier test has left one
