"""Choose the test files that a change can reach: those that import a changed module, by themselves or by others.

Imports are read from the source, without running it. A dotted name in a text counts as an import, too, because tests
start processes (`-m hfx.front`) and patch modules by name. A changed file that is not Python reaches the modules of its
folder, and all modules with a text that names it or its folder.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("hfx", "tests", "bench", "docs", "release")
DOTTED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
CONFTEST = "conftest"
# The command line imports the modules of commands by name, when they are called.
COMMANDS = "hfx.cli"
REGISTRIES = ("hfx.cli", "hfx.cli.commands")
# A change of these can reach any test.
EVERYTHING = (
    "pyproject.toml",
    "setup.py",
    "constraints.txt",
    "Makefile",
    ".ci/run",
    "tests/conftest.py",
    "tests/selection.py",
)
SELECTION = "tests.selection"  # it names folders, and reads none of their files but as modules
OF_SOURCES = "tests/unit/docs/"  # its tests read the sources of all modules, so that any change can reach them
DURATIONS = ROOT / "tests" / "durations.tsv"


@dataclass(frozen=True)
class Source:
    """What a module says: the names that it may import, its texts, and the fixtures that it has and uses."""

    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    fixtures: set[str] = field(default_factory=set)


def read(root: Path, path: Path) -> Source:
    """Read the module at `path`, relative to the `root`."""
    source, tree = Source(), ast.parse((root / path).read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            source.names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.parts[: len(path.parts) - node.level] if node.level else ()
            module = ".".join((*above, *([node.module] if node.module else ())))
            source.names.update({module, *(f"{module}.{each.name}" for each in node.names)})
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            source.texts.add(node.value)
            source.names.update(DOTTED.findall(node.value))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_fixture = any("fixture" in ast.unparse(each) for each in node.decorator_list)
            source.fixtures.update([node.name] if is_fixture else [])
            source.parameters.update(each.arg for each in node.args.args if is_fixture or node.name.startswith("test_"))
    return source


class Modules:
    """The modules of the project by dotted name, and the modules that each one imports."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        files = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
        self.paths = {self.name(path.relative_to(root)): path for path in files}

    def name(self, path: Path) -> str:
        """Return the dotted name of the file at `path`, relative to the root; a folder's is that of its package."""
        return ".".join(path.with_suffix("").parts).removesuffix(".__init__")

    @cached_property
    def sources(self) -> dict[str, Source]:
        """What each module says."""
        return {name: read(self.root, path.relative_to(self.root)) for name, path in self.paths.items()}

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports. A test imports a conftest.py only if it uses one of its fixtures."""
        fixtures = {name: source.fixtures for name, source in self.sources.items() if name.endswith(CONFTEST)}
        found = dict[str, set[str]]()
        for name, source in self.sources.items():
            imported = {module for each in source.names if (module := self._module(each))}
            imported |= {main for each in imported if (main := f"{each}.__main__") in self.paths}
            if name in REGISTRIES:
                imported = {each for each in imported if not each.startswith(COMMANDS + ".") or each in REGISTRIES}
            elif COMMANDS in imported:
                imported |= self._commands(source)
            foreign = source.parameters - source.fixtures
            used = {each for each, names in fixtures.items() if names & foreign and self._is_above(each, name)}
            found[name] = imported | used - {name}
        return found

    def _module(self, name: str) -> str:
        """Return the longest beginning of a dotted name that is a module; empty if there is none."""
        parts = name.split(".")
        ends = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((each for each in ends if each in self.paths), "")

    def _commands(self, source: Source) -> set[str]:
        """Return the modules of the commands that the texts of a module name."""
        words = {word for text in source.texts for word in re.findall(r"\w+", text)}
        return {each for each in self.paths if each.startswith(COMMANDS + ".") and each.split(".")[2] in words}

    def _is_above(self, conftest: str, module: str) -> bool:
        return module.startswith(conftest.removesuffix(CONFTEST))

    def reached(self, changed: Iterable[Path]) -> set[Path]:
        """Return the files of the modules that a change of the files `changed`, relative to the root, can reach."""
        importers = defaultdict[str, set[str]](set)
        for name, imported in self.imports.items():
            for each in imported:
                importers[each].add(name)
        seen, waiting = set[str](), [name for path in changed for name in self._changed(path)]
        while waiting:
            if (name := waiting.pop()) not in seen:
                seen.add(name)
                waiting += importers[name]
        return {self.paths[name] for name in seen if name in self.paths}

    def _changed(self, path: Path) -> Iterator[str]:
        """Yield the modules that a changed file is, or that may read it."""
        if path.suffix == ".py":
            yield self.name(path)
            return
        yield from (name for name, file in self.paths.items() if file.parent == (self.root / path).parent)
        if path.parts[0] == "hfx":
            yield ".".join(path.parts[:2])
        named = {path.name, f"{path.parts[0]}/", *path.parts[:1]} if len(path.parts) > 1 else {path.name}
        for name, source in self.sources.items():
            if name != SELECTION and any(text in named or path.name in text for text in source.texts):
                yield name


def git(*words: str) -> str:
    """Return what git prints; empty if it fails."""
    run = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip() if run.returncode == 0 else ""


def base() -> str:
    """Return the commit that the working tree is compared with; empty if there is none.

    This is the branch point from the remote's main branch; without a remote, the commit at which all tests were run
    last, and their durations recorded.
    """
    remotes = (git("rev-parse", "--verify", "--quiet", f"origin/{branch}") for branch in ("HEAD", "main"))
    remote = next(filter(None, remotes), "")
    recorded = re.match(r"# (\w+)", DURATIONS.read_text(encoding="utf-8"))
    for candidate in (git("merge-base", "HEAD", remote) if remote else "", recorded[1] if recorded else ""):
        if candidate and candidate != git("rev-parse", "HEAD") and git("merge-base", "HEAD", candidate) == candidate:
            return candidate
    return ""


def changed_since(commit: str) -> list[Path]:
    """Return the files that differ from `commit`, relative to the root, with those that git does not know yet."""
    listed = f"{git('diff', '--name-only', commit)}\n{git('ls-files', '--others', '--exclude-standard')}"
    return [Path(line) for line in listed.splitlines() if line]


def main(folders: list[str]) -> None:
    """Print the test files in `folders` that the change since `base()` can reach, or the `folders` for all of them."""
    commit = base()
    changed = changed_since(commit) if commit else []
    if not changed or any(path.as_posix() in EVERYTHING for path in changed):
        print(*folders)
        return
    files = {path for folder in folders for path in (ROOT / folder).rglob("test_*.py")}
    names = {path.relative_to(ROOT).as_posix() for path in files}
    reached = {path.relative_to(ROOT).as_posix() for path in Modules().reached(changed)}
    chosen = sorted(name for name in names if name in reached or name.startswith(OF_SOURCES))
    what = f"{len(changed)} files that differ from {commit[:10]} can reach {len(chosen)} of {len(names)} test files."
    print(what, "`make test-full` runs all of them.", file=sys.stderr)
    print(*chosen)


if __name__ == "__main__":
    main(sys.argv[1:])
