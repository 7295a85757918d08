"""The zoo's data, cache keys and cache; no model is trained here."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests import zoo
from tests.zoo import cache, recipes


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFX_ZOO_CACHE", str(tmp_path))
    return tmp_path


def test_data_are_the_same_in_another_process() -> None:
    code = "from tests import zoo; print([zoo.heldout(task, 50) for task in zoo.TASK_NAMES])"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout == f"{[zoo.heldout(task, 50) for task in zoo.TASK_NAMES]}\n"


def test_tokenizers_are_the_same_in_another_process() -> None:
    code = """
from tests import zoo
from tests.zoo import tokenization, tokenizer_kinds
texts = [example.text for example in zoo.train("entities", 1000)]
for kind in tokenizer_kinds.KINDS.values():
    print(tokenization.pipeline(kind, texts, 500).to_str())
"""
    one, other = (subprocess.check_output([sys.executable, "-c", code]) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("task", zoo.TASK_NAMES)
def test_splits_share_no_key(task: str) -> None:
    seen = {example.key for example in zoo.train(task, 3000)}
    assert not seen & {example.key for example in zoo.heldout(task, 600)}


def test_entities_have_correct_offsets() -> None:
    examples = zoo.train("entities", 3000)
    assert all(x.text[e.start : e.end] == e.text for x in examples for e in x.entities)
    assert {e.label for x in examples for e in x.entities} == {"PER", "LOC", "ORG"}
    assert any(" " in e.text for x in examples for e in x.entities)


def test_answers_have_correct_offsets() -> None:
    examples = [*zoo.train("answers", 2000), *zoo.heldout("answers", 300)]
    assert all(e.answer and e.context[e.start : e.start + len(e.answer)] == e.answer for e in examples)


def test_the_key_changes_with_every_field_of_the_recipe() -> None:
    recipe = recipes.BY_NAME["sentiment-distilbert"]
    changed = [_with_other(recipe, field.name) for field in dataclasses.fields(recipe) if field.name != "task"]
    keys = {zoo.key(recipe), *map(zoo.key, changed)}
    assert len(keys) == len(changed) + 1


def test_the_key_changes_with_a_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PACKAGE", tmp_path)
    (tmp_path / "world.py").write_text("one")
    before = cache.digest(recipes.RECIPES[0], ("world.py",))
    (tmp_path / "world.py").write_text("two")
    assert cache.digest(recipes.RECIPES[0], ("world.py",)) != before


def test_a_build_that_fails_leaves_nothing(empty_cache: Path) -> None:
    def build(folder: Path) -> dict[str, Any]:
        (folder / "config.json").write_text("{}")
        raise zoo.TrainingMissed("below the floor")

    with pytest.raises(zoo.TrainingMissed):
        cache.built("thing", "k", build)
    assert [p.name for p in (empty_cache / "k").iterdir()] == [".lock"]


def test_what_a_killed_build_left_is_cleared(empty_cache: Path) -> None:
    (empty_cache / "k" / ".building-old" / "thing").mkdir(parents=True)
    cache.built("thing", "k", lambda folder: {})
    assert sorted(p.name for p in (empty_cache / "k").iterdir()) == [".lock", "thing", "thing.json"]


def test_concurrent_builds_of_the_same_thing_build_once(empty_cache: Path) -> None:
    builds = []

    def build(folder: Path) -> dict[str, Any]:
        builds.append(folder)
        time.sleep(0.2)
        assert not (empty_cache / "k" / "thing").exists()
        return {"value": 1.0}

    # flock is held by the open file, so threads exclude each other just as processes do.
    threads = [threading.Thread(target=cache.built, args=("thing", "k", build)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert cache.report(empty_cache / "k" / "thing") == {"value": 1.0}


def _with_other(recipe: Any, field: str) -> Any:
    value = getattr(recipe, field)
    return dataclasses.replace(recipe, **{field: f"other-{value}" if isinstance(value, str) else value + 1})
