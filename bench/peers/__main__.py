"""`python -m bench.peers [list|install|remove] [NAME...]`: the libraries and servers that hfx is compared with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench.peers.table import PEERS
from hfx.errors import HfxError


def main(arguments: Sequence[str] | None = None) -> int:
    """List the peers, or fetch or remove their packages, which are kept apart from the environment."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("action", choices=("list", "install", "remove"), nargs="?", default="list")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(PEERS)}; all without it")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in PEERS]:
        parser.error(f"no peer {', '.join(unknown)}: choose of {', '.join(PEERS)}")
    for peer in (PEERS[name] for name in options.names or PEERS):
        try:
            if options.action == "install" and not peer.installed:
                peer.install()
            elif options.action == "remove":
                peer.remove()
        except HfxError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        versions = ", ".join(f"{name} {version}" for name, version in peer.versions().items())
        print(f"{peer.name:12} {'installed' if peer.installed else 'not installed':14} {versions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
