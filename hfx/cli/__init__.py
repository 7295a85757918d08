"""The command line `hfx`: the options that all commands share, and how errors become messages and exit codes.

A command is one file here with one function `command(context, …)` with typer's annotations; its docstring is the help.
The file is imported only when needed, and must import nothing heavy at its top (typer, hfx.errors, hfx.names and
hfx.cli.output are light). A command prints through `reporter(context)` and raises HfxError; it never exits by itself.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

import hfx
from hfx.cli.commands import Commands
from hfx.cli.help import GLOBAL, SETTINGS
from hfx.cli.output import Reporter, reporter
from hfx.errors import HfxError, Interrupted, UsageError
from hfx.extras import missing_package

READER_GONE = 141  # 128 + SIGPIPE
# The base class of all parsing errors, which typer does not export: it has its own copy of click.
ParsingError: type[Exception] = typer.BadParameter.__mro__[1]

EXAMPLES = """Examples:
  hfx demo
  hfx export distilbert/distilbert-base-uncased-finetuned-sst-2-english --name sentiment --quantize
  hfx serve
  hfx infer sentiment "A fine film.\""""

app = typer.Typer(
    name="hfx",
    cls=Commands,
    help="Export Hugging Face checkpoints to verified Triton models; serve, query and measure them.",
    epilog=EXAMPLES,
    context_settings=SETTINGS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(context: typer.Context, requested: bool) -> None:
    if requested:
        report = reporter(context)
        value = {"hfx": hfx.__version__}
        if report.verbose:
            from hfx.cli.versions import details

            value = details()
        lines = [f"{name:<16} {text}" for name, text in value.items()]
        report.result(value, lines if report.verbose else f"hfx {hfx.__version__}")
        raise typer.Exit


@app.callback()
def options(
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=GLOBAL)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=GLOBAL)] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version, rich_help_panel=GLOBAL
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="With --version: also print what a bug report needs.", rich_help_panel=GLOBAL),
    ] = False,
) -> None:
    """Declares the options of all commands. The Reporter reads `--json` and `--debug`, at any place."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `hfx ARGUMENTS` and return the exit code; without `arguments`, take those of the process."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    reporter = Reporter.of(typed)
    if sys.stdout is None:  # it was closed
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):  # print an escape for a character that the terminal can't show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(typed, reporter)
        sys.stdout.flush()
        if arguments is None:
            gc.freeze()  # the process ends: looking for cycles in a model and the libraries would take a second
        return code
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return READER_GONE


def _run(arguments: list[str], reporter: Reporter) -> int:
    try:
        code = typer.main.get_command(app).main(args=arguments, prog_name="hfx", standalone_mode=False, obj=reporter)
        if code == Interrupted.exit_code:  # typer returns it for a KeyboardInterrupt
            raise KeyboardInterrupt
        return int(code or 0)
    except HfxError as error:
        return reporter.failure(error, error.exit_code)
    except ParsingError as error:
        return _parsing_failure(error, reporter)
    except (KeyboardInterrupt, typer.Abort):
        return reporter.failure(Interrupted("Interrupted."), Interrupted.exit_code)
    except SystemExit as ending:
        if isinstance(ending.__context__, BrokenPipeError):  # click turns it into exit code 1
            raise ending.__context__ from None
        raise  # shell completion ends this way
    except BrokenPipeError:
        raise
    except ModuleNotFoundError as error:
        return _missing_module(error, reporter)
    except Exception as error:
        return _unexpected(error, reporter)


# Errors of the system at any call, and what to do. Where hfx can say more, it raises an error of its own.
SYSTEM_ERRORS = {
    errno.EIO: "The disk fails: see the system's log.",
    errno.ENOSPC: "Free some space on the disk, then try again.",
    errno.EDQUOT: "Free some of your space on the disk, then try again.",
    errno.EMFILE: "Allow this process more open files, for example by `ulimit -n 65536`.",
    errno.ENFILE: "The system has too many open files: end other programs, then try again.",
    errno.ENOMEM: "The system has no memory left: end other programs, then try again.",
}


def _unexpected(error: Exception, reporter: Reporter) -> int:
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        fault = UsageError("A path is longer than this system's can be.", "Give the name of a file or a folder.")
        return reporter.failure(fault, fault.exit_code, cause=error)
    if isinstance(error, OSError) and error.errno in SYSTEM_ERRORS:
        failure = HfxError(f"{error.filename or 'A file'}: {error.strerror}.", SYSTEM_ERRORS[error.errno])
        return reporter.failure(failure, failure.exit_code, kind=type(error).__name__, cause=error)
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    fix = "" if reporter.debug else "--debug shows more. Please report it, with `hfx --version --verbose`."
    return reporter.failure(HfxError(f"Unexpected: {reason}", fix), 1, kind=type(error).__name__, cause=error)


def _missing_module(error: ModuleNotFoundError, reporter: Reporter) -> int:
    """Report a missing module: an installation of only the client can't export, run or measure models."""
    lacking = missing_package(error)
    return reporter.failure(lacking, lacking.exit_code, cause=error) if lacking else _unexpected(error, reporter)


def _parsing_failure(error: Any, reporter: Reporter) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # a group alone: the message is its help
        print(error.format_message())
        return 0
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "hfx"
    refused = UsageError(parsing_message(error), f"`{path} --help` shows what it takes.")
    return reporter.failure(refused, refused.exit_code)


# A command line that can't be parsed


KINDS = {"float_parsing": "a number", "int_parsing": "a whole number", "int_from_float": "a whole number"}


def parsing_message(error: Any) -> str:
    """Return the message of a click error; it replaces pydantic's messages about values of a wrong type."""
    entry, parameter = _entry(error), getattr(error, "param", None)
    if entry is None or parameter is None:
        return _unknown_option(error) or str(error.format_message())
    option = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar or parameter.name
    kind, context = entry["type"], entry.get("ctx", {})
    if kind in KINDS:
        return f"{option} {entry['input']!r} is not {KINDS[kind]}."
    if kind == "greater_than_equal":
        return f"{option} {entry['input']} is below {context['ge']}."
    if kind == "less_than_equal":
        return f"{option} {entry['input']} is above {context['le']}."
    if kind == "value_error":  # the error of a choice, which lists the choices
        return f"{option}: {context['error']}"
    return str(error.format_message())


def _unknown_option(error: Any) -> str:
    """Return the message about an unknown option, with the most similar option; empty for another error."""
    if not (possible := getattr(error, "possibilities", None)):
        return ""
    [nearest] = get_close_matches(error.option_name, possible, 1, 0.0)
    return f"There is no option {error.option_name}. Did you mean {nearest}?"


def _entry(error: Any) -> dict[str, Any] | None:
    """Return the first error of pydantic, with which typer >= 0.29 converts values; None for any other cause."""
    errors = getattr(error.__cause__ or error.__context__, "errors", None)
    found: list[dict[str, Any]] = errors() if callable(errors) else []
    return found[0] if found else None
