"""The tasks and the page of bench.proof."""

from __future__ import annotations

from pathlib import Path

from bench import proof
from bench.figures import Figures, load
from tests import zoo

REPOSITORY = Path(__file__).parents[3]


def test_each_story_has_one_right_end_among_three_that_differ() -> None:
    rows = [*proof.story_rows(20)]
    assert rows == [*proof.story_rows(20)]
    for row in rows:
        assert len({*row["choices"]}) == 4
        end = row["choices"][row["label"]]
        name = row["prompt"].partition(" ")[0]
        assert end.partition(". ")[2].startswith(f"At home {name} unpacked the ")
        gifts = row["prompt"].rpartition("There ")[2].partition(" a ")[2].partition(". On")[0]
        assert gifts.replace(" a ", " the ") in end
    assert {row["label"] for row in rows} == {0, 1, 2, 3}


def test_every_task_belongs_to_a_subject_and_names_its_data() -> None:
    tasks = [path.stem for path in proof.TASKS.glob("*.yaml")]
    assert {task.partition("_")[0] for task in tasks} == {*proof.SUBJECTS} == {*proof.WORKS}
    for task in tasks:
        text = (proof.TASKS / f"{task}.yaml").read_text(encoding="utf-8")
        assert f"task: {task}\n" in text and f"test: {task.partition('_')[0]}.jsonl" in text
    assert "stories-gpt2" in zoo.NAMES


def test_a_page_has_the_digits_that_lm_eval_prints() -> None:
    figures = Figures()
    figures.stamp = {"processor": "P", "cores": 2, "versions": {}}
    figures.add(proof.THEIRS, "stories_end", 0, exact_match=0.97, exact_match_stderr=0.0121, unequal_texts=0.0)
    figures.add("hfx fp32", "stories_text", 0, word_perplexity=3.06587, largest_difference=2.123e-5)
    page = proof.page({"stories": figures})
    assert "| stories_end | transformers fp32 | 0.9700 ± 0.0121 |" in page
    assert "| 3.0659 |" in page and "| 2.1e-05 |" in page


def test_the_page_in_docs_is_that_of_the_results() -> None:
    text = (REPOSITORY / "docs" / "proof.md").read_text(encoding="utf-8")
    shown = text.partition("<!-- lm-eval: begin -->")[2].partition("<!-- lm-eval: end -->")[0]
    results = load(REPOSITORY / proof.RESULTS)
    assert shown.strip() == proof.page(results).strip()
    for figures in results.values():
        assert all(figures.median("hfx fp32", task, proof.UNEQUAL) == 0 for task in figures.cases(proof.UNEQUAL))
