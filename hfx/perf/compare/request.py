"""What is to be compared, as one value, and the sides that it comes to.

Chooses among devices, servers, precisions, variants and peers; each makes its sides in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hfx.client import ModelMetadata
from hfx.errors import UsageError
from hfx.perf import measuring
from hfx.perf.compare import published
from hfx.perf.compare.devices import device_sides, parse_devices, target_sides, targets
from hfx.perf.compare.precisions import Source, parse_precisions, precision_sides, source_checkpoint
from hfx.perf.compare.side import Session, Side, served
from hfx.perf.compare.variants import label_of, parse_variants, variant_sides
from hfx.repository.catalog import model
from hfx.repository.edit import scratch


@dataclass(frozen=True)
class Request:
    """The model NAME in ways of one KIND, named by `words` as the command line has them."""

    name: str
    kind: str
    words: tuple[str, ...]
    repository: Path = Path("model_repository")
    device: str = "cpu"
    checkpoint: str = ""
    max_drop: float | None = None

    @property
    def title(self) -> str:
        """What a reader calls it."""
        return f"{self.name}: {self.kind} {' '.join(self.words)}"

    def __post_init__(self) -> None:
        """Refuse what would do nothing."""
        for option, value, kinds in (
            ("--checkpoint", self.checkpoint, ("precisions", "peers")),
            ("--max-drop", self.max_drop, ("precisions",)),
            ("--device", self.device != "cpu", ("precisions", "variants")),
        ):
            if value and self.kind not in kinds:
                known = " and ".join(f"--{kind}" for kind in kinds)
                raise UsageError(f"{option} is about {known}.", f"Leave it out of --{self.kind}.")


Make = Callable[[Request, Path, list[str], Session], list[Side]]  # its folder for copies; lines for what is left out


@contextmanager
def sides(request: Request, session: Session, notes: list[str]) -> Iterator[list[Side]]:
    """The sides, as long as the context lasts; NOTES gets a line for each that there can't be.

    Raises UsageError for words that can't be read, and ModelMissing.
    """
    make = MAKERS[request.kind]
    if request.kind in COPYING:
        with scratch(request.repository, request.name) as folder:
            yield make(request, folder, notes, session)
    else:
        yield make(request, Path(), notes, session)


def metadata(request: Request) -> ModelMetadata:
    """What the model takes: as it is published, or of the first server that answers."""
    if request.kind != "target":
        return published.metadata(request.repository, request.name)
    return measuring.metadata(next(iter(targets(request.words, request.name).values())))


def labels(request: Request) -> list[str]:
    """How the sides will be called, before anything is made for them; of peers without precision."""
    words = ",".join(request.words)
    if request.kind == "devices":
        return [*parse_devices(words)]
    if request.kind == "target":
        return [*targets(request.words, request.name)]
    if request.kind == "precisions":
        return [*parse_precisions(words)]
    if request.kind == "variants":
        return [label_of(variant) for variant in parse_variants(request.words)]
    from hfx.perf.compare.peers import parse_peers

    return [*parse_peers(words)]


def task_of(request: Request) -> str:
    """The task of the published model."""
    return str(model(request.repository, request.name).task)


def _devices(request: Request, folder: Path, notes: list[str], session: Session) -> list[Side]:
    return device_sides(request.repository, request.name, parse_devices(",".join(request.words)))


def _target(request: Request, folder: Path, notes: list[str], session: Session) -> list[Side]:
    return target_sides(request.words, request.name)


def _precisions(request: Request, folder: Path, notes: list[str], session: Session) -> list[Side]:
    source = Source(request.repository, request.name, request.device, request.checkpoint, request.max_drop)
    return precision_sides(source, parse_precisions(",".join(request.words)), folder, notes, session)


def _variants(request: Request, folder: Path, notes: list[str], session: Session) -> list[Side]:
    variants = parse_variants(request.words)
    return variant_sides(request.repository, request.name, request.device, variants, folder, notes)


def _peers(request: Request, folder: Path, notes: list[str], session: Session) -> list[Side]:
    from hfx.perf.compare.peers import opponents, parse_peers, peer_side

    manifest = model(request.repository, request.name)
    precision = published.built_precision(manifest, "cpu")
    wanted = parse_peers(",".join(request.words))
    checkpoint = source_checkpoint(manifest, request.checkpoint).folder
    beside = opponents(wanted, checkpoint, str(manifest.task), precision)
    ours = served(f"hfx {precision}", request.repository, request.name)
    return [ours, *(peer_side(each, checkpoint, str(manifest.task)) for each in beside)]


MAKERS: Mapping[str, Make] = {
    "devices": _devices,
    "target": _target,
    "precisions": _precisions,
    "variants": _variants,
    "peers": _peers,
}
COPYING = ("precisions", "variants")


def chosen(ways: Mapping[str, Sequence[str]]) -> tuple[str, tuple[str, ...]]:
    """The one kind in WAYS, with its words. Raises UsageError for none and for several."""
    if len(ways) != 1:
        said = " and ".join(f"--{kind}" for kind in ways)
        raise UsageError(
            f"{said} exclude each other." if ways else "What is to be compared?",
            f"Give one of {', '.join(f'--{kind}' for kind in MAKERS)}, or result files A.json B.json.",
        )
    kind, words = next(iter(ways.items()))
    return kind, tuple(words)
