"""The tables and goals of `bench.encoder`, from its medians. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bench.report import Goal, number, table
from bench.report import goals as goals_table

if TYPE_CHECKING:
    from bench.encoder import Key, Settings

Medians = Mapping["Key", float]

ADDED_MILLISECONDS = 1.0
SHARE_OF_BARE = 0.85
PEER_GOALS = {
    ("transformers on torch", "fp32"): 4.0,
    ("optimum, ONNX Runtime", "int8"): 1.5,
    ("optimum-intel, OpenVINO", "int8"): 1.0,
}
PEER_NOTES = {
    "optimum-intel, OpenVINO": "computes what is not int8 in bfloat16 where the processor can (OpenVINO's default); "
    "hfx asks for float32, in which a row's answer is the same bits in any batch",
}


def render(medians: Medians, settings: Settings, notes: Mapping[str, str]) -> str:
    """All tables as Markdown."""
    parts = [goals_table(goals(medians, settings))]
    for width in settings.widths:
        parts += [_bare(medians, settings, width), _served(medians, settings, width), _peers(medians, settings, width)]
    said = {**notes, **{way: note for way, note in PEER_NOTES.items() if any(key[0] == way for key in medians)}}
    return "\n".join([*parts, *(f"- {name}: {note}" for name, note in said.items())])


def goals(medians: Medians, settings: Settings) -> list[Goal]:
    """The goals, with what was measured; on a machine with few cores the load generator's share counts against us."""
    return [
        goal
        for width in settings.widths
        for goal in (*_served_goals(medians, settings, width), *_peer_goals(medians, settings, width))
    ]


def labels(key: Key) -> dict[str, Any]:
    """A key of the figures with its parts named."""
    return dict(zip(("way", "level", "precision", "tokens", "batch", "figure"), key, strict=True))


def _served_goals(medians: Medians, settings: Settings, width: int) -> Iterator[Goal]:
    for precision in settings.precisions:
        added = _added(medians, precision, width)
        yield Goal(f"{precision}, {width} tokens: ms added for one caller", added, most=ADDED_MILLISECONDS)
        for concurrency in settings.concurrencies[1:]:
            share = _share(medians, settings, precision, width, concurrency)
            name = f"{precision}, {width} tokens: share of the bare session at concurrency {concurrency}"
            yield Goal(name, share, least=SHARE_OF_BARE)


def _peer_goals(medians: Medians, settings: Settings, width: int) -> Iterator[Goal]:
    if not any(key[0] != "hfx" for key in medians):
        return
    for (way, precision), least in PEER_GOALS.items():
        for batch in settings.peer_batches:
            theirs = medians.get((way, "text", precision, width, batch, "ms"))
            ours = medians.get(("hfx", "text", "int8", width, batch, "ms"))
            value = theirs / ours if theirs and ours else None
            yield Goal(f"int8, {width} tokens, batch {batch}: times as fast as {way} {precision}", value, least=least)


def _added(medians: Medians, precision: str, width: int) -> float | None:
    served = medians.get(("hfx", "served", precision, width, 1, "ms"))
    bare = medians.get(("hfx", "net", precision, width, 1, "ms"))
    return served - bare if served is not None and bare is not None else None


def _bare_rate(medians: Medians, settings: Settings, precision: str, width: int) -> float:
    """Texts a second of the bare session at its best batch."""
    return max(1e3 * batch / medians["hfx", "net", precision, width, batch, "ms"] for batch in settings.batches)


def _share(medians: Medians, settings: Settings, precision: str, width: int, concurrency: int) -> float:
    served = medians["hfx", "served", precision, width, concurrency, "requests/s"]
    return served / _bare_rate(medians, settings, precision, width)


def _bare(medians: Medians, settings: Settings, width: int) -> str:
    rows = []
    for precision in settings.precisions:
        for batch in settings.batches:
            ms = medians["hfx", "net", precision, width, batch, "ms"]
            processor = medians["hfx", "net", precision, width, batch, "processor ms"]
            rows.append((precision, str(batch), number(ms), number(1e3 * batch / ms), number(processor / batch)))
    header = ("precision", "batch", "ms", "texts/s", "processor ms a text")
    return table(f"{width} tokens: the bare session", header, rows)


def _served(medians: Medians, settings: Settings, width: int) -> str:
    rows = []
    for precision in settings.precisions:
        for concurrency in settings.concurrencies:
            key = ("hfx", "served", precision, width, concurrency)
            added = number(_added(medians, precision, width)) if concurrency == 1 else ""
            share = f"{_share(medians, settings, precision, width, concurrency):.0%}" if concurrency > 1 else ""
            found = (number(medians[*key, figure]) for figure in ("requests/s", "ms", "p99 ms", "net batch"))
            rows.append((precision, str(concurrency), *found, added, share))
    header = ("precision", "callers", "requests/s", "p50 ms", "p99 ms", "net batch", "ms added", "share of bare")
    return table(f"{width} tokens: through Triton, strings in, labels out", header, rows)


def _peers(medians: Medians, settings: Settings, width: int) -> str:
    rows = []
    for way, precision in dict.fromkeys((key[0], key[2]) for key in medians if key[1] == "text"):
        found = []
        for batch in settings.peer_batches:
            for level in ("text", "net"):
                ms = medians.get((way, level, precision, width, batch, "ms"))
                ours = medians.get(("hfx", level, "int8", width, batch, "ms"))
                found += [number(ms), f"{ms / ours:.2f}" if ms and ours else "-"]
        rows.append((way + (" (this process)" if way == "hfx" else ""), precision, *found))
    header = ["way", "precision"]
    for batch in settings.peer_batches:
        for level in ("text to label", "net only"):
            header += [f"batch {batch}, {level}, ms", "hfx int8 is x times as fast"]
    return table(f"{width} tokens: peers", header, rows)
