"""The table of Triton releases, and the minimum versions of hfx's dependencies."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from hfx.errors import UsageError
from hfx.releases import RELEASES, for_generators, release, security_warning
from release.advisories import ADVISORIES, load

ROOT = Path(__file__).resolve().parents[3]
KNOWN = load(ADVISORIES)


@pytest.mark.parametrize("tag", ["24.08", "26.99", "", "latest", "24.10-py3"])
def test_an_unknown_tag_is_refused_and_the_known_ones_are_named(tag: str) -> None:
    with pytest.raises(UsageError) as caught:
        release(tag)
    assert "24.10" in caught.value.fix
    assert "26.07" in caught.value.fix
    assert ("Later releases load what is built for 26.08." in caught.value.fix) is (tag == "26.99")


@pytest.mark.parametrize(("built_for", "minimum"), [("24.09", "24.12"), ("24.10", "24.12"), ("25.03", "25.03")])
def test_generators_need_a_python_that_has_their_onnxruntime(built_for: str, minimum: str) -> None:
    assert for_generators(release(built_for)).tag == minimum


@pytest.mark.parametrize(("tag", "warned"), [("24.10", True), ("26.06", True), ("26.07", False), ("27.01", False)])
def test_releases_with_known_vulnerabilities_are_warned_of_with_the_source(tag: str, warned: bool) -> None:
    assert bool(security_warning(tag)) is warned
    assert not warned or "bulletin 5875" in security_warning(tag)


def test_releases_are_in_order_and_never_lose_operators() -> None:
    tags = [entry.tag for entry in RELEASES]
    assert tags == sorted(set(tags))
    assert all(re.fullmatch(r"\d\d\.\d\d", tag) for tag in tags)
    known = [(entry.opset, entry.ir) for entry in RELEASES if entry.opset and entry.ir]
    assert known == sorted(known)


def ranges() -> list[Requirement]:
    """Return the requirements of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    return [entry for entry in map(Requirement, lines) if canonicalize_name(entry.name) != "hfx"]


@pytest.mark.parametrize("range_", ranges(), ids=str)
def test_no_range_begins_with_a_version_with_a_known_vulnerability(range_: Requirement) -> None:
    """The advisory list also holds for the pinned versions (tests/unit/release)."""
    least = [Version(part.version) for part in range_.specifier if part.operator in (">=", "==", "~=")]
    known = [each for each in KNOWN if each.package == canonicalize_name(range_.name) and not each.accepted]
    admitted = [each.ids for each in known if not least or each.affects(max(least))]
    assert not admitted, f"{range_} admits {admitted}"
