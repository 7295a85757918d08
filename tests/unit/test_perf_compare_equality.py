"""Two ways that did not do the same work get no ratio, and it is said why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hfx.perf.compare.equality import equality_notes, unequal
from hfx.perf.results import Tokens, groups
from tests.unit.perf_compare_runs import run


def compared(ours: tuple[int, ...], theirs: tuple[int, ...], **more: Any) -> str:
    found = groups([run("hfx", 1.0, written=ours), run("torch", 1.0, written=theirs, peer="torch", **more)])
    return unequal(found[1], found[0])


def test_as_many_tokens_in_any_order_are_the_same_work():
    assert compared((8, 8, 5), (8, 5, 8)) == ""
    assert compared((), ()) == ""


def test_other_counts_are_told_with_both():
    assert compared((8, 8), (8, 7)) == "torch wrote 15 tokens, hfx 16 in round 1"
    assert compared((8, 6), (7, 7)).startswith("torch and hfx wrote as many tokens, but not request by request")
    assert compared((8, 8), ()) == "the tokens of torch were not counted in round 1"


def test_other_prompts_are_other_work_where_both_counted_them():
    for read, words in ((0, ""), (9, ""), (8, "torch read 8 tokens, hfx 9 in round 1")):
        ours = replace(run("hfx", 1.0), tokens=Tokens(9, 5, (5,)))
        theirs = replace(run("torch", 1.0, peer="torch"), tokens=Tokens(read, 5, (5,)))
        found = groups([ours, theirs])
        assert unequal(found[1], found[0]) == words


def test_settings_of_one_model_may_end_where_they_end():
    found = groups([run("fp32", 1.0, written=(8,)), run("int8", 1.0, written=(7,))])
    assert unequal(found[1], found[0]) == ""


def test_the_notes_name_the_load():
    runs = [run("hfx", 1.0, written=(8, 8)), run("torch", 1.0, written=(8, 7), peer="torch")]
    runs += [run("hfx", 1.0, callers=2, written=(8,)), run("torch", 1.0, callers=2, written=(8,), peer="torch")]
    expected = "torch, 1 caller: no ratio, torch wrote 15 tokens, hfx 16 in round 1."
    assert equality_notes(groups(runs), "hfx") == [expected]
