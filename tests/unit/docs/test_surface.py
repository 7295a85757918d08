"""The record of the public surface, and the incompatible changes that CHANGELOG.md has to name."""

from __future__ import annotations

import pytest

from docs.generate import surface

RECORDED = surface.parsed(surface.RECORD.read_text(encoding="utf-8"))
REMEDY = f"""
Name each item in backticks under "{surface.SECTION}" of the newest version in CHANGELOG.md, and run `make docs`.
Edit docs/surface.txt by hand only if no release has the item, or if no user can notice the change.
"""


def changelog(*names: str, section: str = surface.SECTION) -> str:
    lines = "".join(f"- `{name}` is not what it was.\n" for name in names)
    return (
        f"# Changelog\n\n## 9.1.0\n\n### Models\n\n- One.\n\n{section}\n\n{lines}\n### Speed\n\n- `b c`\n\n## 9.0.0\n"
    )


def test_the_changelog_names_every_incompatible_change() -> None:
    unnamed = surface.unnamed(RECORDED, surface.surface(), surface.CHANGELOG.read_text(encoding="utf-8"))
    whole = [name for name in unnamed if unnamed.keys().isdisjoint(surface.parents(name))]
    assert not unnamed, "".join(f"\n{name} {unnamed[name]}." for name in whole) + REMEDY


@pytest.mark.parametrize(
    "name",
    [
        "hfx.client.Client.classify(top_k)", "hfx.client.Token.raw", "hfx.errors.ServerBusy",
        "hfx.batch.spark.udf(model)", "hfx export --quantize", "hfx batch run argument 2", "exit code 4", "HFX_TOKEN",
        "POST /v1/completions n", "GET /health", "generation setting top_p",
        "hfx.json source.sha256", "folder NAME_net", "task fill-mask", "tensor fill-mask fills", "hfx_slots_used",
    ],
)  # fmt: skip
def test_a_removed_item_stays_in_the_record_until_the_changelog_names_it(name: str) -> None:
    found = {each: details for each, details in RECORDED.items() if each != name}
    assert surface.unnamed(RECORDED, found, changelog("another")) == {name: "is gone"}
    assert surface.updated(RECORDED, found, changelog("another")) == RECORDED
    assert surface.unnamed(RECORDED, found, changelog(name)) == {}
    assert surface.updated(RECORDED, found, changelog(name)) == found


@pytest.mark.parametrize(
    ("old", "new", "may"),
    [
        ("N required", "N", True),
        ("keyword required", "keyword =None", True),
        ("string", "string|[string]", True),
        ("fp32|int8 =fp32", "fp32|fp16|int8 =fp32", True),
        ("counter reason", "counter reason|key", True),
        ("N", "N required", False),
        ("N =30", "N =60", False),
        ("N =30", "N", False),
        ("position 2 =None", "position 3 =None", False),
        ("string|[string]", "string", False),
        ("SourceError exit 3", "SourceError exit 4", False),
    ],
)
def test_what_is_accepted_may_grow_and_nothing_else_may_change(old: str, new: str, may: bool) -> None:
    assert surface.compatible(old, new) == may
    unnamed = surface.unnamed({"a b": old}, {"a b": new}, changelog())
    assert unnamed == ({} if may else {"a b": f'was "{old}" and is "{new}"'})


def test_a_new_item_is_recorded_unless_an_existing_one_needs_it() -> None:
    found = {"a": "", "a b": "N", "a c": "N required", "d": "", "d e": "N required"}
    assert surface.unnamed({"a": ""}, found, changelog()) == {"a c": "is new and required"}
    assert surface.updated({"a": ""}, found, changelog()) == {name: found[name] for name in ("a", "a b", "d", "d e")}
    assert surface.updated({"a": ""}, found, changelog("a c")) == found


def test_a_changed_item_stands_for_its_parts_and_an_unchanged_one_does_not() -> None:
    recorded = {"a": "", "a --b": "flag", "a.c(d)": "keyword =None"}
    assert surface.unnamed(recorded, {}, changelog("a")) == {}
    assert surface.unnamed(recorded, {"a": ""}, changelog("a")).keys() == {"a --b", "a.c(d)"}


@pytest.mark.parametrize(
    "text", [changelog("b c", section="### Serving"), f"# Changelog\n\n## 9.2.0\n\n{changelog('b c')}"]
)
def test_only_the_section_of_the_newest_version_counts(text: str) -> None:
    assert surface.unnamed({"b c": ""}, {}, text) == {"b c": "is gone"}
