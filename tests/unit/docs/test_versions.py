"""Versions and installation commands in documents and examples agree with pyproject.toml and the Makefile."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from docs.generate.tested import FACTS
from hfx.exporter.encoder.checkpoint.architectures import ENCODERS
from tests.rigs.files.documents import DOCUMENTS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNTRIED = {"torch"}  # other versions than the one that is pinned bring CUDA
TEXTS = [*DOCUMENTS, *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").iterdir()) if path.is_file())]


@pytest.mark.parametrize("page", TEXTS)
def test_versions_of_wheels_and_images_are_the_projects(page: str) -> None:
    found = re.findall(r"\bhfx[-:/](\d+\.\d+\.\d+)", text_of(page))
    assert set(found) <= {PROJECT["version"]}


def test_the_changelog_begins_with_the_version() -> None:
    assert re.findall(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)[0] == PROJECT["version"]


@pytest.mark.parametrize("page", TEXTS)
def test_no_page_installs_hfx_from_an_index_that_lacks_it(page: str) -> None:
    assert not re.search(r"pip install [^\n`#]*(?<![\w/-])'?hfx(\[|\b(?!-))", text_of(page))


def test_badges_of_the_readme_are_true() -> None:
    badges = dict(re.findall(r"img\.shields\.io/badge/(\w+)-(.+?)-\w+\)", text_of("README.md")))
    pythons = re.findall(r":: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert badges == {
        "version": PROJECT["version"],
        "python": "%20%7C%20".join(pythons),
        "platform": "Linux%20x86--64%20%7C%20ARM64",
        "license": PROJECT["license"].replace("-", "--"),
    }


@pytest.mark.parametrize("page", ["README.md", "docs/from-servers.md"])
def test_the_number_of_encoder_architectures_is_that_of_the_table(page: str) -> None:
    assert f"[{len(ENCODERS)} encoder architectures]" in text_of(page)


def test_torchs_cpu_build_in_the_readme_is_the_version_that_is_tested() -> None:
    [pinned] = re.findall(r"^torch==(\S+)$", text_of("constraints.txt"), re.MULTILINE)
    for page in ("README.md", "docs/install.md", "docs/quickstart.md"):
        assert f"pip install torch=={pinned} --index-url https://download.pytorch.org/whl/cpu" in text_of(page), page


def test_the_pinned_onnxruntime_is_one_that_ran() -> None:
    [pinned] = re.findall(r"^onnxruntime==(\S+)$", text_of("constraints.txt"), re.MULTILINE)
    runs = tomllib.loads(FACTS.read_text(encoding="utf-8"))["run"]
    assert pinned in {run.get("onnxruntime") for run in runs if run.get("python")}, FACTS


def test_the_demo_of_a_fresh_clone_installs_what_it_needs_alone(tmp_path: Path) -> None:
    words = ["make", "--dry-run", "--no-print-directory", f"VENV={tmp_path / 'venv'}"]
    extras = {}
    for target in ("demo", "test-fast"):
        done = subprocess.run([*words, target], cwd=ROOT, capture_output=True, text=True, check=True)
        extras[target] = re.findall(r"--editable '\.\[(.+)\]'", done.stdout)
    assert extras["demo"] == ["embedded,perf"]
    assert extras["test-fast"][0] == "embedded,perf" and "dev" in extras["test-fast"][1].split(",")


def test_every_lower_bound_is_the_version_that_was_tried() -> None:
    """A bound that is lowered without `make constraints-lowest` and `make test-versions` differs from the file."""
    tried = dict(re.findall(r"^([\w-]+)==(\S+)$", text_of("constraints-lowest.txt"), re.MULTILINE))
    [extras] = re.findall(r"^LOWEST_EXTRAS := (\S+)$", text_of("Makefile"), re.MULTILINE)
    bounds = {str(each): lowest(each) for each in requirements(extras.split(",")) if each.name not in UNTRIED}
    assert bounds == {text: Version(tried[canonicalize_name(Requirement(text).name)]) for text in bounds}


def requirements(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what hfx requires with `extras`, also through extras that name others."""
    texts = chain(PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras))
    for requirement in map(Requirement, texts):
        if requirement.name == PROJECT["name"]:
            yield from requirements(requirement.extras)
        else:
            yield requirement


def lowest(requirement: Requirement) -> Version:
    """Return the lowest version that `requirement` allows, which has to be stated."""
    return next(Version(each.version) for each in requirement.specifier if each.operator in (">=", "=="))


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")
