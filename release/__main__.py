"""`python -m release`: see the package."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import release
from hfx.errors import HfxError
from release.advisories import CONSTRAINTS, check
from release.build import build
from release.verify import verify

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or the exit code of its error: 1 for what is refused, 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m release", description=release.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("build", "verify"):
        commands.add_parser(name).add_argument("dist", type=Path, nargs="?", default=Path("dist"), help="(dist)")
    files = [ROOT / name for name in CONSTRAINTS]
    commands.add_parser("advisories").add_argument("files", type=Path, nargs="*", default=files, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        if options.command == "build":
            build(ROOT, options.dist)
        elif options.command == "verify":
            verify(options.dist)
        else:
            check(options.files)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
