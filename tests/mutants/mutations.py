"""The mutants of a module: changes of its syntax tree, and how a module that is imported gets the changed code."""

from __future__ import annotations

import ast
import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
PLAIN = (ast.Constant, ast.Tuple, ast.List)  # results that are often as false as None
UNTOUCHED = {"annotation", "returns", "decorator_list"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """A change of the module's tree, which `apply` makes: in the top-level statement `at`.

    `within` is the statement of a function that is changed, or the top-level statement itself.
    """

    line: str
    change: str
    at: int
    within: ast.stmt
    apply: Callable[[], None]

    @property
    def name(self) -> str:
        """The source line and the change, as mutants.tsv has them."""
        return f"{self.line}\t{self.change}"


def mutants(source: str, tree: ast.Module) -> Iterator[Mutant]:
    """Yield the mutants of a module. Applying one changes `tree`."""
    lines, seen = source.splitlines(), Counter[str]()
    for at, top in enumerate(tree.body):
        if isinstance(top, (ast.If, ast.Import, ast.ImportFrom)):
            continue
        for parent, field, index, node, within in (
            (tree, "body", at, top, top),
            *_nodes(top, top, isinstance(top, FUNCTIONS)),
        ):
            for new in _changes(parent, field, node):
                change = f"{_text(node)} -> {_text(new)}"
                line = lines[getattr(node, "lineno", within.lineno) - 1].strip()
                seen[line + change] += 1
                change += f" ({seen[line + change]})" if seen[line + change] > 1 else ""
                yield Mutant(line, change, at, within, _replacement(parent, field, index, ast.copy_location(new, node)))


def _nodes(
    parent: ast.AST, within: ast.stmt, is_run: bool
) -> Iterator[tuple[ast.AST, str, int | None, ast.AST, ast.stmt]]:
    """Yield the nodes below `parent` with their places, and the statement of a function that has them, if `is_run`.

    Assertions, messages and annotations are left as they are.
    """
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if field in UNTOUCHED or not isinstance(node, ast.AST) or isinstance(node, (ast.Assert, ast.JoinedStr)):
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":
                continue  # of zip: an assertion
            statement = node if is_run and isinstance(node, ast.stmt) else within
            yield parent, field, index, node, statement
            yield from _nodes(node, statement, is_run or isinstance(node, FUNCTIONS))


def _changes(parent: ast.AST, field: str, node: Any) -> Iterator[ast.AST]:
    """Yield what may stand in the place of `node`."""
    yield from _other_operators(node)
    yield from _other_values(node)
    if _is_removable(node):
        yield ast.Pass()
    if field == "ifs" or (field == "test" and isinstance(parent, (ast.If, ast.IfExp))):
        yield from (ast.Constant(True), ast.Constant(False))
    elif field == "test":
        yield ast.Constant(False)  # of a loop, which would not end with True


def _other_operators(node: Any) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                yield _with(node, ops=[*ops[:i], OPERATORS[type(op)](), *ops[i + 1 :]])
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=OPERATORS[type(op)]())
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else _with(node, values=rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(op)]())
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield _with(node, func=ast.copy_location(ast.Name(CALLS[name], ast.Load()), node.func))


def _other_values(node: Any) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float() as value):
            yield from (ast.Constant(value * 2), ast.Constant(value / 2)) if value else [ast.Constant(1.0)]
        case ast.Return(value=value) if value is not None and not isinstance(value, PLAIN):
            yield ast.Return(ast.Constant(None))


def _is_removable(node: Any) -> bool:
    """Return whether `node` is a statement without which the rest can still be run."""
    match node:
        case ast.Expr(value=value):
            return not isinstance(value, ast.Constant)
        case ast.Assign(targets=[target]):
            return isinstance(target, (ast.Attribute, ast.Subscript))
    return isinstance(node, (ast.Delete, ast.Continue, ast.Break, ast.Raise, ast.AugAssign))


def _with(node: Any, **fields: Any) -> Any:
    changed = copy.copy(node)
    vars(changed).update(fields)
    return changed


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 100 else f"{text[:100]}..."


def _replacement(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> Callable[[], None]:
    def apply() -> None:
        ast.fix_missing_locations(new)
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return apply


def install(module: ModuleType, statements: Sequence[ast.stmt]) -> None:
    """Run top-level statements of a module again. Functions and classes keep their identity, and get the new code."""
    namespace, before = vars(module), dict(vars(module))
    for statement in statements:
        if isinstance(statement, (ast.If, ast.Import, ast.ImportFrom)):
            continue
        is_definition = isinstance(statement, DEFINITIONS)
        target = dict(namespace) if is_definition else namespace
        exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), target)
        if is_definition:
            _transplant(namespace[statement.name], target[statement.name])
    changed = {name for name, value in before.items() if namespace[name] is not value}
    for other in [each for each in sys.modules.values() if isinstance(each, ModuleType) and each is not module]:
        for name in changed & vars(other).keys():
            if vars(other)[name] is before[name]:
                setattr(other, name, namespace[name])


def _transplant(old: Any, new: Any) -> None:
    """Give the function `old`, or the functions and values of the class `old`, the code and defaults of `new`."""
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
    elif isinstance(old, type):
        for name, value in vars(new).items():
            if isinstance(value, (int, float, tuple)) and not name.startswith("__"):
                setattr(old, name, value)
            elif name in vars(old):
                _transplant(vars(old)[name], value)
        return
    for name in ("fget", "func", "__wrapped__"):
        if hasattr(new, name) and hasattr(old, name):
            _transplant(getattr(old, name), getattr(new, name))


def recording(tree: ast.Module) -> list[ast.stmt]:
    """Return the definitions of a module, with code before each statement that adds its line to `__lines__`."""
    definitions = [copy.deepcopy(top) for top in tree.body if isinstance(top, DEFINITIONS)]
    for node in [node for top in definitions for node in ast.walk(top) if not isinstance(node, ast.ClassDef)]:
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                marks = [ast.parse(f"__lines__.add({statement.lineno})").body[0] for statement in value]
                setattr(node, field, [each for pair in zip(marks, value, strict=True) for each in pair])
    return definitions
