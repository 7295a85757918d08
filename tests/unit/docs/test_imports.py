"""Imports within packages, which the rules of import-linter between packages don't see."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST_NAMES = 15  # of hfx's that a file of a dialect imports


def module_name(path: Path) -> str:
    """The dotted name of a file below ROOT; that of the package for an `__init__.py`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of hfx that a file imports anywhere, also for annotations alone and within functions."""
    package = module_name(path).split(".")
    package = package if path.name == "__init__.py" else package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            found |= {name if (name := f"{source}.{alias.name}") in modules else source for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules - {module_name(path)}


def without_circles(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left of a graph after modules that import nothing, or that nothing imports, are removed repeatedly."""
    while True:
        imported = set().union(*graph.values()) if graph else set()
        inner = {name for name, used in graph.items() if used and name in imported}
        if len(inner) == len(graph):
            return graph
        graph = {name: graph[name] & inner for name in inner}


def test_modules_import_each_other_in_no_circle_not_even_for_their_types() -> None:
    paths = {module_name(path): path for path in (ROOT / "hfx").rglob("*.py")}
    graph = {name: imports(path, {*paths}) for name, path in paths.items()}
    assert without_circles(graph) == {}


def test_a_circle_is_found() -> None:
    assert without_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == {"b": {"c"}, "c": {"b"}}


def imported_names(path: Path) -> list[str]:
    """The names that a file imports from hfx."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    sources = [node for node in nodes if isinstance(node, ast.ImportFrom) and (node.level or "hfx" in str(node.module))]
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [alias.name for node in sources for alias in node.names] + [name for name in modules if "hfx" in name]


@pytest.mark.parametrize("path", sorted((ROOT / "hfx/front/dialects").glob("[!_]*.py")), ids=lambda path: path.stem)
def test_a_dialect_is_read_without_the_rest_of_the_front(path: Path) -> None:
    names = imported_names(path)
    assert len(names) <= MOST_NAMES, names
    assert "*" not in names
