"""The sizes of packages, and what a branch costs: its own files, and those of others that it changes (`make cost`)."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter

from tests.selection import ROOT, base, git

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
BLANK = re.compile(r"\s*(//.*)?")  # of C++
PRODUCT = ("hfx", "bench", "release")
FOREIGN = 8  # the most files other than its own that a feature should change


def code_lines(source: str) -> int:
    """Return the lines of Python that are neither blank nor part of a comment or docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def cpp_lines(source: str) -> int:
    """Return the lines of C++ that are neither blank nor a comment."""
    return sum(not BLANK.fullmatch(line) for line in source.splitlines())


def measured() -> Counter[str]:
    """Return the lines of code of each package of hfx, of `bench` and `release`, and of all C++ (`cpp`)."""
    sizes: Counter[str] = Counter()
    for path in (each for folder in PRODUCT for each in (ROOT / folder).rglob("*.py")):
        folder, first, *rest = path.relative_to(ROOT).parts
        package = first if rest and folder == "hfx" else folder
        sizes[package] += code_lines(path.read_text(encoding="utf-8"))
    for path in (each for ending in ("cpp", "h") for each in (ROOT / "hfx" / "native").rglob(f"*.{ending}")):
        sizes["cpp"] += cpp_lines(path.read_text(encoding="utf-8"))
    return sizes


def main() -> int:
    """Print what the commits since `selection.base()` cost. Return 1 if there is no such commit."""
    if not (commit := base()):
        print("There is no branch point: no origin, and no commit in tests/durations.tsv.")
        return 1
    lines = git("diff", "--name-status", "--no-renames", commit, "--", *PRODUCT).splitlines()
    by_status = [line.split("\t") for line in lines]
    own = [path for status, path in by_status if status == "A"]
    foreign = [path for status, path in by_status if status == "M"]
    numbers = [line.split("\t") for line in git("diff", "--numstat", commit, "--", *PRODUCT).splitlines()]
    added, deleted = (sum(int(row[at]) for row in numbers if row[at].isdigit()) for at in (0, 1))
    print(
        f"Since {commit[:10]}: {len(own)} files of its own, {len(foreign)} files of others; +{added} -{deleted} lines."
    )
    print(*(f"    {path}" for path in foreign), sep="\n")
    for line in git("log", "--format=%h %s", f"{commit}..HEAD").splitlines():
        changed = git("show", "--format=", "--name-status", line.split()[0], "--", *PRODUCT).splitlines()
        if (count := sum(each.startswith("M") for each in changed)) > FOREIGN:
            print(f"{count} files of others in {line}: say in the commit which seam was missing.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
