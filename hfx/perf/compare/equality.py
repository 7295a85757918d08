"""Whether two ways did the same work: without that, a ratio of their times says nothing."""

from __future__ import annotations

from hfx.perf.results import Group, Run


def unequal(one: Group, other: Group) -> str:
    """Why no ratio may be taken of two groups, in one line; empty where their work was the same.

    Only other libraries and servers are held to it: their answers must have as many tokens as ours, request by
    request. Two settings of one model may differ where an answer ends by itself.
    """
    if not (one.subject.peer or other.subject.peer):
        return ""
    by_round = {run.round: run for run in other.runs}
    for run in one.runs:
        partner = by_round.get(run.round)
        if partner and (words := differing(run, partner)):
            return f"{words} in round {run.round + 1}"
    return ""


def differing(one: Run, other: Run) -> str:
    """How the token counts of two runs differ; empty where they are equal, or where nothing is written."""
    if one.tokens is None and other.tokens is None:
        return ""
    if one.tokens is None or other.tokens is None:
        silent = one if one.tokens is None else other
        return f"the tokens of {silent.subject.label} were not counted"
    names = (one.subject.label, other.subject.label)
    for verb, mine, theirs in (
        ("wrote", one.tokens.written, other.tokens.written),
        ("read", one.tokens.read or other.tokens.read, other.tokens.read or one.tokens.read),  # 0: not counted
    ):
        if mine != theirs:
            return f"{names[0]} {verb} {mine} tokens, {names[1]} {theirs}"
    if sorted(one.tokens.each) != sorted(other.tokens.each):
        return f"{names[0]} and {names[1]} wrote as many tokens, but not request by request"
    return ""


def equality_notes(found: list[Group], base: str) -> list[str]:
    """One line for each way that did other work than BASE at the same load: it gets no ratio."""
    of_base = {group.load.label: group for group in found if group.subject.label == base}
    notes = []
    for group in found:
        partner = of_base.get(group.load.label)
        if partner and partner is not group and (words := unequal(group, partner)):
            notes.append(f"{group.subject.label}, {group.load.label}: no ratio, {words}.")
    return notes
