"""The limits of CONTRIBUTING: sizes of packages and files, and which modules start processes or lock files."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HFX = ROOT / "hfx"
ROW = re.compile(r"^\| `(\w+)` \| ([\d,]+) \|$", re.MULTILINE)
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
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


def code_lines(source: str) -> int:
    """Return the lines that are neither blank nor part of a comment or docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def measured() -> Counter[str]:
    sizes: Counter[str] = Counter()
    for path in HFX.rglob("*.py"):
        first, *rest = path.relative_to(HFX).parts
        sizes[first if rest else "hfx"] += code_lines(path.read_text(encoding="utf-8"))
    return sizes


def test_lines_of_code_are_counted_without_blanks_comments_and_docstrings() -> None:
    text = 'x = """a\nb"""  # two lines\n'
    source = f'"""A module."""\n\n# A comment.\n{text}\n\ndef f():\n    """Text.\n\n    More.\n    """\n    return x\n'
    assert code_lines(source) == 4


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
