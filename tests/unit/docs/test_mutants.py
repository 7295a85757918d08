"""`make mutants`: which changes it makes, how an imported module gets them, and its table of explained mutants."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants.__main__ import EXPLAINED, FLOORS, ROOT
from tests.mutants.mutations import Mutant, install, mutants, recording

SOURCE = '''
from dataclasses import dataclass

LIMIT = 3
TWICE = [LIMIT * 2]

@dataclass
class Counter:
    most: int = LIMIT

    @property
    def twice(self) -> int:
        return TWICE[0]

    def fits(self, number: int, strict: bool = False) -> bool:
        """Compare."""
        assert number != 0
        if number < self.most and not strict:
            return True
        raise ValueError(f"{number + 1} is too large")
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    made = ModuleType("made")
    made.__file__ = str(tmp_path / "made.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "made", made)
        exec(SOURCE, vars(made))
        yield made


def changed(module: ModuleType, change: str) -> None:
    tree = ast.parse(SOURCE)
    [mutant] = [each for each in mutants(SOURCE, tree) if each.change == change]
    top = tree.body[mutant.at]
    mutant.apply()
    install(module, tree.body if mutant.within is top else [top])


def test_operators_constants_conditions_and_statements_change_and_messages_and_assertions_do_not() -> None:
    found = {
        each.change for each in mutants(SOURCE, ast.parse(SOURCE)) if each.line.startswith(("if", "raise", "LIMIT"))
    }
    condition = "number < self.most and (not strict)"
    assert found == {
        "3 -> 4",
        "3 -> 2",
        "number < self.most -> number <= self.most",
        "not strict -> strict",
        *(f"{condition} -> {new}" for new in ("True", "False", "number < self.most", "not strict")),
        f"{condition} -> number < self.most or not strict",
        "raise ValueError(f'{number + 1} is too large') -> pass",
    }
    assert not [each for each in mutants(SOURCE, ast.parse(SOURCE)) if "assert" in each.line]


@pytest.mark.parametrize(
    ("change", "answers"),
    [
        ("number < self.most -> number <= self.most", (3, 6, True)),
        ("3 -> 4", (4, 8, True)),
        ("LIMIT * 2 -> LIMIT // 2", (3, 1, False)),
        ("return TWICE[0] -> return None", (3, None, False)),
        ("raise ValueError(f'{number + 1} is too large') -> pass", (3, 6, None)),
    ],
)
def test_classes_that_are_in_use_get_the_changed_code_and_values(
    module: ModuleType, change: str, answers: tuple[object, ...]
) -> None:
    kind = module.Counter
    before = kind()
    changed(module, change)
    assert module.Counter is kind

    def fits() -> bool | None:
        try:
            return kind().fits(3)
        except ValueError:
            return False

    assert (kind().most, before.twice, fits()) == answers


def test_modules_that_imported_a_constant_get_the_changed_one(module: ModuleType) -> None:
    other = ModuleType("other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "other", other)
        other.TWICE = module.TWICE  # type: ignore[attr-defined]
        changed(module, "LIMIT * 2 -> LIMIT // 2")
    assert other.TWICE == [1]  # type: ignore[attr-defined]


def test_the_executed_statements_are_recorded(module: ModuleType) -> None:
    lines: set[int] = set()
    vars(module)["__lines__"] = lines
    install(module, recording(ast.parse(SOURCE)))
    assert module.Counter().fits(1)
    texts = SOURCE.splitlines()
    assert [texts[line - 1].strip().split()[0] for line in sorted(lines)][1:] == ["assert", "if", "return"]


def test_every_explained_mutant_is_one_of_its_module() -> None:
    rows = [line.split("\t") for line in EXPLAINED.read_text(encoding="utf-8").splitlines()]
    assert {len(row) for row in rows} == {4}
    made: dict[str, list[Mutant]] = {}
    for path in FLOORS:
        source = (ROOT / path).read_text(encoding="utf-8")
        made[path] = list(mutants(source, ast.parse(source)))
    gone = [
        row for row in rows if not any(each.line == row[1] and row[2] in ("*", each.change) for each in made[row[0]])
    ]
    assert gone == []
