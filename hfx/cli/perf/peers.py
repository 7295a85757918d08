"""`hfx perf peers`: the libraries and servers that hfx is compared with: what is here, fetch, remove."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.output import Reporter, reporter
from hfx.errors import UsageError

if TYPE_CHECKING:
    from hfx.perf.peers import Peer

COLUMNS = ("NAME", "INSTALLED", "VERSIONS", "WHAT FOR")


class Action(StrEnum):
    """What is done."""

    LIST = "list"
    INSTALL = "install"
    REMOVE = "remove"


def command(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(help="list, install or remove.")] = Action.LIST,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Of which peers; all without it.")
    ] = None,
) -> None:
    """List the peers that hfx is compared with, and fetch or remove their packages, kept apart from yours."""
    from hfx.perf.peers import PEERS

    report = reporter(context)
    chosen = _chosen(PEERS, names or [])
    if action is Action.INSTALL:
        _install(report, chosen)
    elif action is Action.REMOVE:
        if not names:
            raise UsageError("`hfx perf peers remove` needs a name.", "`hfx perf peers` lists them.")
        removed = [peer.name for peer in chosen if peer.remove()]
        report.result({"removed": removed}, f"Removed: {', '.join(removed)}." if removed else "Nothing was installed.")
    else:
        entries = [_entry(peer) for peer in chosen]
        report.table({"peers": entries}, COLUMNS, [_row(entry) for entry in entries])


def _chosen(known: Any, names: list[str]) -> list[Peer]:
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"There is no peer {unknown[0]!r}.", f"Choose of {', '.join(known)}.")
    return [known[name] for name in dict.fromkeys(names or known)]


def _install(report: Reporter, peers: list[Peer]) -> None:
    installed = []
    for peer in peers:
        if not peer.installed:
            with report.progress(f"Fetching {peer.title}"):
                peer.install()
            installed.append(peer.name)
    ready = ", ".join(peer.name for peer in peers)
    words = f"Fetched: {', '.join(installed)}." if installed else f"Nothing to fetch: {ready} can be used."
    report.result({"installed": installed, "ready": [peer.name for peer in peers]}, words)


def _entry(peer: Peer) -> dict[str, Any]:
    return {
        "name": peer.name,
        "title": peer.title,
        "about": peer.about,
        "installed": peer.installed,
        "fetched": bool(peer.needs),
        "versions": dict(peer.versions()),
    }


def _row(entry: dict[str, Any]) -> tuple[object, ...]:
    versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
    state = "yes" if entry["installed"] else f"hfx perf peers install {entry['name']}"
    return entry["name"], state, versions, entry["about"]
