"""`python -m bench.peers [list|install|remove] [NAME...]`: packages of the peers, apart from the environment."""

from __future__ import annotations

import argparse
import shutil

from bench.peers import PEERS, needed
from bench.peers.gliner_library import GLINER
from bench.peers.llama_server import SERVER
from bench.peers.mlserver import MLSERVER

PACKAGES = {
    **{name: needed(name) for name in PEERS if name != "hfx"},
    "gliner": (GLINER,),
    "mlserver": (MLSERVER,),
    "llama-server": (SERVER,),
}


def main() -> None:
    """Print every peer with its packages after what was asked for. Raises FetchFailed."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description="Packages of the peers.")
    parser.add_argument("action", choices=("list", "install", "remove"), nargs="?", default="list")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"of {', '.join(PACKAGES)}; all without it")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in PACKAGES]:
        parser.error(f"no peer {', '.join(unknown)}: choose of {', '.join(PACKAGES)}")
    for name in options.names or PACKAGES:
        for packages in PACKAGES[name]:
            if options.action == "install":
                packages.fetch()
            elif options.action == "remove" and packages.folder:
                shutil.rmtree(packages.folder)
        state = "installed" if all(packages.folder for packages in PACKAGES[name]) else "not installed"
        print(f"{name:12} {state:14} {', '.join(packages.pins[0] for packages in PACKAGES[name])}")


if __name__ == "__main__":
    main()
