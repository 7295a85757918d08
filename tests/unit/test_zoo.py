"""The zoo's data, identities and cache; no model is trained here."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import zoo
from tests.zoo import __main__ as command_line
from tests.zoo import cache, generators, recipes, shapes, world
from tests.zoo.data import entities, nli, sentiment, topics
from tests.zoo.objectives import language_modelling, similarity, tagging
from tests.zoo.objectives.objective import micro_f1
from tests.zoo.tasks import TASKS


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HFX_ZOO_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("task", zoo.TASK_NAMES)
def test_data_are_the_same_in_another_process(task: str) -> None:
    code = f"from tests import zoo; print(repr(zoo.heldout({task!r}, 50)))"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout == repr(zoo.heldout(task, 50)) + "\n"


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


@pytest.mark.parametrize("task", zoo.TASK_NAMES)
def test_examples_are_different(task: str) -> None:
    examples = zoo.heldout(task, 600)
    assert len(set(examples)) == len(examples) == 600


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_sentiment_labels_are_balanced(split: str) -> None:
    examples = zoo.train("sentiment", 3000) if split == "train" else zoo.heldout("sentiment", 600)
    shares = _shares(Counter(e.label for e in examples))
    assert set(shares) == set(sentiment.LABELS)
    assert min(shares.values()) > 0.28


def test_no_nli_label_is_rare() -> None:
    shares = _shares(Counter(e.label for e in zoo.train("nli", 4000)))
    assert set(shares) == set(nli.LABELS)
    assert min(shares.values()) > 0.15


def test_zero_shot_labels_are_asked_both_ways() -> None:
    asked = {(e.hypothesis, e.label) for e in zoo.train("nli", 8000)}
    for label in nli.ZERO_SHOT_LABELS:
        hypothesis = f"This example is {label}."
        assert {(hypothesis, "entailment"), (hypothesis, "contradiction")} <= asked


def test_topics_come_in_all_numbers() -> None:
    counts = Counter(len(e.labels) for e in zoo.train("topics", 3000))
    assert set(counts) == {0, 1, 2, 3}
    assert set(topics.LABELS) == {label for e in zoo.train("topics", 3000) for label in e.labels}


def test_entities_stand_where_they_say() -> None:
    examples = zoo.train("entities", 3000)
    assert all(x.text[e.start : e.end] == e.text for x in examples for e in x.entities)
    assert {e.label for x in examples for e in x.entities} == {"PER", "LOC", "ORG"}
    assert any(" " in e.text for x in examples for e in x.entities)


def test_entities_of_one_sentence_do_not_overlap() -> None:
    for example in zoo.train("entities", 3000):
        ends = [0, *(e.end for e in example.entities)]
        assert all(e.start >= end for e, end in zip(example.entities, ends, strict=False))


def test_some_names_are_person_and_place() -> None:
    kinds: dict[str, set[str]] = {}
    for example in zoo.train("entities", 3000):
        for entity in example.entities:
            kinds.setdefault(entity.text, set()).add(entity.label)
    assert {"PER", "LOC"} <= kinds["Florence"]


def test_answers_stand_where_they_say() -> None:
    examples = [*zoo.train("answers", 2000), *zoo.heldout("answers", 300)]
    assert all(e.answer and e.context[e.start : e.start + len(e.answer)] == e.answer for e in examples)


def test_some_contexts_are_far_longer_than_a_window() -> None:
    lengths = [len(e.context.split()) for e in zoo.heldout("answers", 300)]
    assert sum(length > 150 for length in lengths) >= 15


def test_similarity_scores_cover_their_range() -> None:
    counts = Counter(e.score for e in zoo.train("similarity", 3000))
    assert set(counts) == {0.0, 0.25, 0.5, 0.75, 1.0}
    assert min(_shares(counts).values()) > 0.15


def test_a_summary_says_what_the_story_says() -> None:
    for example in zoo.heldout("stories", 100):
        name, thing, place = example.key
        assert all(word in example.summary and word in example.prompt for word in (name, thing, place))


def test_a_continuation_names_every_thing_that_the_prompt_names() -> None:
    for example in zoo.heldout("stories", 100):
        things = {word for word in world.OBJECTS if f" {word} " in example.prompt}
        assert things == {word for word in world.OBJECTS if f" {word} " in example.continuation}
        assert example.prompt.endswith(example.key[0]) and example.continuation.startswith(" ")


@pytest.mark.parametrize(("task", "numbers"), [("stories", {1, 2, 3}), ("short-summaries", {1, 2})])
def test_stories_differ_in_length(task: str, numbers: set[int]) -> None:
    assert {example.summary.count(" for ") for example in zoo.heldout(task, 200)} == numbers


def test_asking_for_more_examples_than_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="add templates or words"):
        world.draw(lambda rng: zoo.SentimentExample("a", "b", ("c",)), name="poor", split="train", count=2)


def test_every_recipe_and_shape_has_its_own_name() -> None:
    assert len(set(zoo.NAMES) | set(zoo.SHAPE_NAMES)) == len(recipes.RECIPES) + len(shapes.SHAPES)


@pytest.mark.parametrize("name", zoo.NAMES)
def test_a_recipe_names_files_that_exist(name: str) -> None:
    sources = TASKS[recipes.BY_NAME[name].task].sources
    assert [s for s in sources if not (cache.PACKAGE / s).is_file()] == []


@pytest.mark.parametrize("name", zoo.NAMES)
def test_the_architecture_of_a_recipe_is_known(name: str) -> None:
    assert recipes.BY_NAME[name].architecture in generators.ARCHITECTURES


def test_the_width_of_a_generators_heads_is_a_multiple_of_eight() -> None:
    made = {"gpt2", "bart", "t5", "flan-t5"}
    writers = [r for r in recipes.RECIPES if r.architecture in made]
    assert {r.architecture for r in writers} == made
    for recipe in writers:
        settings = generators.ARCHITECTURES[recipe.architecture].settings(recipe)
        assert settings.get("d_kv", recipe.hidden // recipe.heads) % 8 == 0


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


def test_a_folder_appears_only_when_it_is_whole(empty_cache: Path) -> None:
    def build(folder: Path) -> dict[str, Any]:
        (folder / "config.json").write_text("{}")
        assert not (empty_cache / "k" / "thing").exists()
        return {"value": 1.0}

    folder = cache.built("thing", "k", build)
    assert folder == empty_cache / "k" / "thing"
    assert [p.name for p in folder.iterdir()] == ["config.json"]
    assert cache.report(folder) == {"value": 1.0}


def test_what_a_killed_build_left_is_cleared(empty_cache: Path) -> None:
    (empty_cache / "k" / ".building-old" / "thing").mkdir(parents=True)
    cache.built("thing", "k", lambda folder: {})
    assert sorted(p.name for p in (empty_cache / "k").iterdir()) == [".lock", "thing", "thing.json"]


def test_two_who_build_the_same_build_it_once(empty_cache: Path) -> None:
    builds = []

    def build(folder: Path) -> dict[str, Any]:
        builds.append(folder)
        time.sleep(0.2)
        return {}

    # flock is held by the open file, so threads exclude each other just as processes do.
    threads = [threading.Thread(target=cache.built, args=("thing", "k", build)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


def test_importing_the_zoo_loads_no_torch() -> None:
    code = "import sys; from tests import zoo; zoo.heldout('answers', 1); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_data_are_written_as_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sentiment.csv"
    assert command_line.main(["data", "sentiment", "--count", "20", "--output", str(path)]) == 0
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["text"], r["label"]) for r in rows] == [(e.text, e.label) for e in zoo.heldout("sentiment", 20)]
    assert capsys.readouterr().out.strip() == str(path)


def test_an_unknown_name_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as usage:
        command_line.main(["build", "no-such-checkpoint"])
    assert usage.value.code == 2


def test_micro_f1_counts_members_of_all_sets() -> None:
    assert micro_f1([{1, 2}, {3}], [{1}, {3, 4}]) == pytest.approx(4 / 6)


def test_spearman_shares_the_ranks_of_equal_values() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    assert similarity.spearman([0.0, 0.5, 0.5, 1.0], [1.0, 2.0, 3.0, 4.0]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_a_prompt_counts_less_than_its_continuation() -> None:
    weights = language_modelling._weights({"input_ids": [5, 6, 7, 0], "prompt_length": 2})
    assert weights[0] == weights[1] < weights[2] == weights[3] == 1.0


def test_prompts_of_one_length_are_continued_together() -> None:
    features = [{"input_ids": [1] * 9, "prompt_length": length} for length in (3, 4, 3, 5, 4)]
    batches = [[f["prompt_length"] for f in batch] for batch in language_modelling._alike(features)]
    assert batches == [[3, 3], [4, 4], [5]]


def test_tags_of_one_entity_make_one_span() -> None:
    tags = ["O", "B-PER", "I-PER", "O", "B-LOC", "B-LOC", "O"]
    offsets = [(0, 0), (0, 4), (5, 9), (10, 12), (13, 17), (18, 22), (0, 0)]
    assert tagging.spans(tags, offsets) == {(0, 9, "PER"), (13, 17, "LOC"), (18, 22, "LOC")}


def test_bio_tags_cover_the_labels_of_the_data() -> None:
    used = {e.label for x in zoo.train("entities", 1000) for e in x.entities}
    assert set(entities.LABELS) == {"O"} | {f"{prefix}-{label}" for prefix in "BI" for label in used}


def _shares(counts: Counter[Any]) -> dict[Any, float]:
    return {label: count / counts.total() for label, count in counts.items()}


def _with_other(recipe: Any, field: str) -> Any:
    value = getattr(recipe, field)
    return dataclasses.replace(recipe, **{field: f"other-{value}" if isinstance(value, str) else value + 1})
