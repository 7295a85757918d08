"""`hfx demo`: train small checkpoints, export, serve and query them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hfx.cli.interrupts import deferred
from hfx.cli.output import reporter
from hfx.errors import UsageError
from hfx.options import Option
from hfx.repository.staging import check_folder


def command(
    context: typer.Context,
    keep: Annotated[
        Path | None,
        Option(metavar="DIR", help="Keep checkpoints, data and models in this new folder. Default: delete them."),
    ] = None,
) -> None:
    """Train two small models, then export, serve and query them, in about two minutes.

    Needs no network: hfx makes the training texts itself.

    Examples:
      hfx demo
      hfx demo --keep demo
    """
    with deferred():
        from hfx.demo.steps import Demo
        from hfx.triton.installation import find_wheel

    report = reporter(context)
    find_wheel()  # reports missing packages before any work
    with tempfile.TemporaryDirectory(prefix="hfx-demo-") as temporary:
        folder = Path(temporary) if keep is None else _new(keep)
        say = report.note if report.json else lambda text: report.lines([text])
        demo = Demo(folder, say, report.steps, report.output)
        figures = demo.run()
    kept = [] if keep is None else [f"Kept in {keep}. Next: cd {keep} && hfx serve"]
    report.result({**figures, "folder": None if keep is None else str(keep)}, kept)


def _new(folder: Path) -> Path:
    """Create the folder and return it. Raises UsageError if it is not empty or can't be created."""
    check_folder(folder, "--keep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty.", "Give --keep a new folder.")
    except OSError as error:
        raise UsageError(f"{folder} can't be a folder: {error.strerror}.", "Give another --keep.") from error
    return folder.absolute()
