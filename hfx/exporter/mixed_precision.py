"""The search for the products that a quantized file must keep in a finer format: its record, and the files it tries.

The record is in the manifest's choices under SEARCH. `hfx export --again` reads it, and repeats its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from hfx.errors import ModelCorrupt, VerificationFailed
from hfx.exporter.progress import counted
from hfx.manifest import Manifest

Result = TypeVar("Result")
Precision = Literal["fp32", "fp16", "int8", "int4"]
EXACT: Precision = "fp32"
SEARCH = "precision_search"  # in the manifest's choices
MOST_RUNS = 4  # mixed files that the gate measures
LEAST_SPEEDUP = 1.2  # of a mixed file, against fp32; below it, the exact file is worth more
FINER: Mapping[Precision, Precision] = {"int8": "fp32", "int4": "int8"}  # what products are kept in


@dataclass(frozen=True)
class Search:
    """What a search found, and why it began.

    `precision` is that of the file for CPUs: int8 with the products `kept` in float32, int4 with those in int8, or fp32
    instead. `reason` is the gate's refusal of the file without any, and `why_fp32` says why no mixed file was
    published. `gate_runs` is the number of mixed files that the gate measured. `speedup` says how many times as fast as
    in fp32 the fastest mixed file that passed was; None if none passed. `ranking` is the error that each product alone
    adds, the largest first.
    """

    precision: Precision
    kept: tuple[str, ...] = ()
    products: int = 0
    reason: str = ""
    why_fp32: str = ""
    gate_runs: int = 0
    seconds: float = 0.0
    speedup: float | None = None
    ranking: Mapping[str, float] = field(default_factory=dict)

    @property
    def pays(self) -> bool:
        """Whether a mixed file passed, and is worth its loss."""
        return (self.speedup or 0.0) >= LEAST_SPEEDUP

    def exact(self, cpu_runtime: str = "") -> Search:
        """Return the record of the fp32 file that is published in place of a mixed one, with the reason.

        Raises VerificationFailed if `cpu_runtime` of a generator names the native operators, which are not for fp32.
        """
        record = replace(self, precision=EXACT, why_fp32=self._why_fp32())
        if cpu_runtime == "native":
            raise VerificationFailed(
                f"{record.reason} And {record.why_fp32}.",
                "Nothing was published. Leave --cpu-runtime out, as native operators are not for fp32, or accept more "
                "by --max-drop.",
            )
        return record

    def _why_fp32(self) -> str:
        finer = FINER[self.precision]
        if self.speedup is None:
            tried = f"({self.gate_runs} tried)"
            return f"no file with some of the {self.products} products in {self.precision} passed the gate {tried}"
        kept = f"with {len(self.kept)} of {self.products} products in {finer} ({places(self.kept)})"
        return f"{self.precision} {kept} passed the gate, but is only {self.speedup:g} x as fast as fp32"

    def as_json(self) -> dict[str, Any]:
        """Return the record for the manifest."""
        ranking = {name: float(f"{error:.4g}") for name, error in self.ranking.items()}
        return {**asdict(self), "kept": list(self.kept), "ranking": ranking}


def read_search(manifest: Manifest) -> Search | None:
    """Return the record of a published model; None if its export searched for nothing.

    Raises ModelCorrupt if the record is damaged.
    """
    record: Any = manifest.choices.get(SEARCH)
    if record is None:
        return None
    try:
        search = Search(**{**record, "kept": tuple(record["kept"])})
    except (TypeError, KeyError) as error:
        raise ModelCorrupt(f"{SEARCH} in the manifest of {manifest.name} is damaged.", "Export it again.") from error
    if search.precision not in (EXACT, *FINER) or not all(isinstance(name, str) for name in search.kept):
        raise ModelCorrupt(f"{SEARCH} in the manifest of {manifest.name} is damaged.", "Export it again.")
    return search


def fewest_kept(total: int, attempt: Callable[[int], Result | None]) -> tuple[Result | None, int]:
    """Return the result of the least number below `total` for which `attempt` returned one, and the number of attempts.

    The numbers are found by bisection of their logarithms, as few products are usually enough. At most MOST_RUNS
    attempts are made, so that the number is the least of all only if it is small.
    """
    low, high, runs = 0, total, 0
    best: Result | None = None
    for _ in counted(range(MOST_RUNS), "mixed files at most"):
        if high - low < 2:
            break
        count = min(max(round(math.sqrt(max(low, 1) * high)), low + 1), high - 1)
        result, runs = attempt(count), runs + 1
        if result is None:
            low = count
        else:
            best, high = result, count
    return best, runs


def places(names: Sequence[str]) -> str:
    """Return the names of products in few words, such as `layers 10, 11 output; pooler`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        words = [word for word in name.split(".") if word != "dense"]
        at = next((index for index, word in enumerate(words) if word.isdigit()), None)
        role = ".".join(words if at is None else words[at + 1 :])
        numbers = layers.setdefault(role, [])
        if at is not None:
            numbers.append(int(words[at]))
    return "; ".join(
        f"layer{'s' if len(numbers) > 1 else ''} {', '.join(map(str, sorted(numbers)))} {role}" if numbers else role
        for role, numbers in layers.items()
    )
