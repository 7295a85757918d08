"""The generated pages of docs/: commands, rules, and the tables of tables.py."""

from __future__ import annotations

from typing import Any

from docs.generate import environment, llms, surface, tables, tested
from hfx.cli.commands import COMMANDS

WIDTH = 88
SETTINGS = """\
  The settings of the page "Generation settings", such as --max-tokens N; `--help` lists
  them. Three have other names here: --sample / --greedy (do_sample), --stop TEXT
  (stop_words, repeatable), --log-probs (return_log_probs)."""
GLOBAL = """Global options:
  --json      Print one JSON object on stdout.
  --debug     Show tracebacks.
  -h, --help  Show this message and exit.

"""


def pages() -> dict[str, str]:
    """File name -> text of every generated page."""
    made = {
        "cli.md": command_page(),
        "lint.md": lint_page(),
        "settings.md": tables.settings_page(),
        "tensors.md": tables.tensors_page(),
        "environment.md": environment.environment_page(),
        "metrics.md": tables.metrics_page(),
        "api.md": tables.api_page(),
        "tested.md": tested.tested_page(),
        "surface.txt": surface.record(),
    }
    return {**made, "llms.txt": llms.llms_text(made)}


def command_page() -> str:
    """The help of every command."""
    text = "The help of every command. All have the global options, and exit with one of these codes:"
    codes = tables.exit_codes()
    parts = ["# Command line", "", tables.wrapped(text), "", *codes, "", "```", GLOBAL.strip(), "```", ""]
    shown: dict[str, str] = {}
    commands = list(environment.commands("", COMMANDS))
    for name, command in [each for each in commands if not each[0].startswith(environment.AZURE)]:
        sections = [_once(section, name, shown) for section in _help(command, name).split("\n\n")]
        parts += [f"## hfx {name}", "", "```", "\n\n".join(sections), "```", ""]
    rows = [
        (tables.code(f"hfx {name}"), tables.first_line(of.callback))
        for name, of in commands
        if name.startswith(environment.AZURE)
    ]
    text = "Options are those of `az ml`; `--help` lists them. [Examples](azureml.md#batch-endpoints-on-this-machine)."
    parts += [f"## hfx {environment.AZURE.strip()}", "", text, "", *tables.table(("command", "does"), rows), ""]
    return "\n".join(parts)


def _once(section: str, name: str, shown: dict[str, str]) -> str:
    """A section of a command's help; a reference where another command or page has the same options."""
    title, *options = section.splitlines()
    if len(options) < 3 or not title.endswith(":"):
        return section
    if title == "Generation:":
        return f"{title}\n{SETTINGS}"
    first = shown.setdefault(" ".join(section.split()), name)
    return section if first == name else f"{title}\n  As for hfx {first}."


def lint_page() -> str:
    """Return the page of the rules of `hfx lint`."""
    from hfx.repository.lint import RULES

    rows = [f"| {rule.id} | {rule.severity} | {rule.title} |" for rule in RULES]
    head = ["# Rules of `hfx lint`", "", "The rules for model repositories.", "", "| id | severity | rule |"]
    return "\n".join([*head, "|---|---|---|", *rows, ""])


def _help(command: Any, name: str) -> str:
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=f"hfx {name}", **settings)
    text: str = command.get_help(context)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip().replace(GLOBAL, "")
