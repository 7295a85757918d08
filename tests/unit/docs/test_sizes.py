"""The limits of CONTRIBUTING: sizes of packages and files, and which modules start processes or lock files."""

from __future__ import annotations

import re

import pytest

from tests.cost import code_lines, cpp_lines, measured
from tests.selection import ROOT

HFX = ROOT / "hfx"
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \|$", re.MULTILINE)
MOST_LINES = 400  # of a file, all of them counted
# What starts a process, or locks a file -> the files of hfx that may call it.
OWNERS = {
    "Popen": {
        "process.py",
        "demo/steps.py",
        "deploy/sagemaker/isolated.py",  # run by itself, without hfx
        "python_backends/generation/grammar_process.py",  # within Triton, without hfx
    },
    "create_subprocess_exec": {"process.py"},
    "flock": {
        "batch/api/process.py",
        "batch/folder.py",
        "exporter/checkpoint_files.py",
        "native/build.py",
        "repository/staging.py",
        "triton/workspace.py",
    },
}


def test_lines_of_code_are_counted_without_blanks_comments_and_docstrings() -> None:
    text = 'x = """a\nb"""  # two lines\n'
    source = f'"""A module."""\n\n# A comment.\n{text}\n\ndef f():\n    """Text.\n\n    More.\n    """\n    return x\n'
    assert code_lines(source) == 4
    assert cpp_lines("// A comment.\n\nint f() {\n    return 1;  // one\n}\n") == 3


def test_no_package_is_larger_than_its_row() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    allowed = {name: int(number.replace(",", "")) for name, number in ROW.findall(text)}
    sizes = measured()
    assert allowed.keys() == sizes.keys()
    grown = {name: f"{size:,} of {allowed[name]:,}" for name, size in sizes.items() if size > allowed[name]}
    assert grown == {}, "Take as much away, or change the row in CONTRIBUTING.md, and say in the commit what it is for."


@pytest.mark.parametrize("name", OWNERS)
def test_processes_and_locks_have_few_owners(name: str) -> None:
    calls = re.compile(rf"(?:subprocess|asyncio|fcntl)\.{name}\(")
    found = {path for path in HFX.rglob("*.py") if calls.search(path.read_text(encoding="utf-8"))}
    assert {path.relative_to(HFX).as_posix() for path in found} == OWNERS[name]


@pytest.mark.parametrize("folder", ["hfx", "tests", "bench", "docs", "release"])
def test_no_file_is_too_long_to_be_read(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if "# Generated" not in path.read_text("utf-8")[:500]]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}
