"""The table of Triton releases."""

import re

import pytest

from hfx.errors import UsageError
from hfx.releases import RELEASES, for_generators, release, security_warning


@pytest.mark.parametrize("tag", ["24.08", "26.99", "", "latest", "24.10-py3"])
def test_an_unknown_tag_is_refused_and_the_known_ones_are_named(tag: str) -> None:
    with pytest.raises(UsageError) as caught:
        release(tag)
    assert "24.10" in caught.value.fix
    assert "26.07" in caught.value.fix


@pytest.mark.parametrize(("built_for", "minimum"), [("24.09", "24.12"), ("24.10", "24.12"), ("25.03", "25.03")])
def test_generators_need_a_python_that_has_their_onnxruntime(built_for: str, minimum: str) -> None:
    assert for_generators(release(built_for)).tag == minimum


@pytest.mark.parametrize(("tag", "warned"), [("24.10", True), ("26.06", True), ("26.07", False), ("27.01", False)])
def test_releases_with_known_vulnerabilities_are_warned_of_with_the_source(tag: str, warned: bool) -> None:
    assert bool(security_warning(tag)) is warned
    assert not warned or "bulletin 5875" in security_warning(tag)


def test_tags_are_unique_ordered_and_well_formed_and_no_newer_release_runs_fewer_operators() -> None:
    tags = [entry.tag for entry in RELEASES]
    assert tags == sorted(set(tags))
    assert all(re.fullmatch(r"\d\d\.\d\d", tag) for tag in tags)
    known = [(entry.opset, entry.ir) for entry in RELEASES if entry.opset and entry.ir]
    assert known == sorted(known)
