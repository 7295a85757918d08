"""The table of Triton releases."""

import re

import pytest

from hfx.errors import UsageError
from hfx.releases import DEFAULT_TAG, RELEASES, release


def test_a_known_tag_gives_its_facts() -> None:
    found = release("24.10")
    assert (found.triton, found.ort, found.opset, found.ir, found.python) == ("2.51.0", "1.19.2", 21, 10, "3.10")
    assert found.image == "nvcr.io/nvidia/tritonserver:24.10-py3"


@pytest.mark.parametrize("tag", ["24.08", "26.99", "", "latest", "24.10-py3"])
def test_an_unknown_tag_is_refused_and_the_known_ones_are_named(tag: str) -> None:
    with pytest.raises(UsageError) as caught:
        release(tag)
    assert "24.10" in caught.value.fix
    assert "26.07" in caught.value.fix


def test_the_default_is_in_the_table() -> None:
    assert release(DEFAULT_TAG).tag == DEFAULT_TAG


def test_tags_are_unique_ordered_and_well_formed() -> None:
    tags = [entry.tag for entry in RELEASES]
    assert tags == sorted(set(tags))
    assert all(re.fullmatch(r"\d\d\.\d\d", tag) for tag in tags)


def test_a_newer_release_never_runs_fewer_operators() -> None:
    known = [(entry.opset, entry.ir) for entry in RELEASES if entry.opset and entry.ir]
    assert known == sorted(known)
