"""The generated end of hfx.client.settings: the table of generation settings, as editors and type checkers read it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS, Setting

FILE = Path("hfx/client/settings.py")
MARK = "# What follows is made by `make docs` from the table in hfx/python_backends/engine/generation_settings.py: "
MARK += "change that.\n"
SERVED = [setting for setting in SETTINGS.values() if setting.dtype]
INDENT, WIDTH = "    ", 120
OBJECT = '''
@dataclass(frozen=True)
class GenerationSettings:
    """How a text is generated; what is None is as the model's generation_config.json says.

'''
CHECK = """
    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        for name, value in given.items():
            object.__setattr__(self, name, _checked(name, value))
"""
KEYWORDS = '''
class Settings(TypedDict, total=False):
    """The fields of GenerationSettings, and aliases of other servers, as keyword arguments."""

'''


def module() -> str:
    """The module's text: what is written by hand, and the two classes."""
    by_hand, mark, _ = (Path(__file__).resolve().parents[2] / FILE).read_text(encoding="utf-8").partition(MARK)
    types = {setting.name: _type(setting) for setting in SERVED}
    documented = "".join(f"{line}\n" for setting in SERVED for line in _documented(setting))
    fields = "".join(f"{INDENT}{name}: {kind} | None = None\n" for name, kind in types.items())
    keywords = "".join(f"{INDENT}{name}: {kind} | None\n" for name, kind in types.items())
    others = "".join(f"{INDENT}{alias}: {_of_alias(name, types[name])} | None\n" for alias, name in ALIASES.items())
    note = f"{INDENT}# Names of other servers.\n"
    quotes = f'{INDENT}"""\n\n'
    return "\n".join(
        [by_hand + mark, OBJECT + documented + quotes + fields + CHECK, KEYWORDS + keywords + note + others]
    )


def _type(setting: Setting) -> str:
    """What callers give, as Python has it."""
    keyed = "Mapping[int, float] | " if setting.is_keyed else ""
    return f"{keyed}Iterable[{setting.item.__name__}]" if setting.is_list else _rendered(setting.type)


def _of_alias(name: str, kind: str) -> str:
    """What callers give under a setting's other name; OpenAI's `stop` may be one text."""
    return f"str | {kind}" if SETTINGS[name].is_list else kind


def _rendered(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "Literal[" + ", ".join(f'"{value}"' for value in get_args(kind)) + "]"
    if get_origin(kind) is dict:
        return "dict[str, Any]"
    return " | ".join(map(_rendered, get_args(kind))) if get_args(kind) else str(kind.__name__)


def _documented(setting: Setting) -> Iterator[str]:
    """The lines of a setting in a docstring: name, meaning, and range where the type does not say it."""
    margin = max(len(each.name) for each in SERVED) + 4  # two quotes, and two spaces
    name = f"`{setting.name}`".ljust(margin)
    has_range = setting.is_list or setting.type in (int, float)
    text = f"{setting.text} ({setting.allowed})" if has_range else setting.text
    lines = textwrap.wrap(text, WIDTH - len(INDENT) - margin)
    for number, line in enumerate(lines):
        yield INDENT + (" " * margin if number else name) + line
