"""The measurements of an export, for people: a summary in words, and every figure of the gate for `--verbose`.

All figures come from the manifest (`parity` and `choices` of NAME/hfx.json).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.cli.connection import DEFAULT_REPOSITORY
from hfx.exporter.mixed_precision import FINER, places, read_search

if TYPE_CHECKING:
    from hfx.manifest import Manifest

RUNTIMES = {"onnxruntime": "ONNX Runtime", "native": "native operators"}
# In the figures on the user's data, with the words for them.
DECISIONS = {
    "other_decisions": "other decisions than the checkpoint's",
    "calibration_error": "calibration error",
    "calibration_error_before": "calibration error before --calibrate",
}
NOTED = 0.1  # the share of unknown tokens from which on texts of the user would tell more
MEASURED = {"torch": "the checkpoint", "cpu": "CPU", "cpu onnxruntime": "CPU with ONNX Runtime", "gpu": "GPU"}


def summary(manifest: Manifest, repository: Path) -> list[str]:
    """Return lines about the published model: sizes, the runtime and why, and the agreement with the checkpoint."""
    parity: dict[str, Any] = dict(manifest.parity)
    megabytes = sum(file.size for file in manifest.files.values()) / 1e6
    lines = [f"Published {manifest.name} ({manifest.task}) to {repository}: {megabytes:.1f} MB."]
    for device in ("cpu", "gpu"):
        if figures := parity.get(device):
            how = _runtime(manifest.choices.get("cpu_runtime")) + _math(manifest) if device == "cpu" else ""
            where = ", compared on the CPU" if device == "gpu" and figures.get("kind") == "CPU" else ""
            lines.append(f"  {device.upper():9} {figures['precision']}{how}{where}")
            lines += [f"  {'':9} {line}" for line in (_mixed(manifest) if device == "cpu" else [])]
            lines += [f"  {'':9} {line}" for line in _agreement(figures)]
            lines += [
                f"  {'':9} {line}" for line in _trials(manifest.choices.get("cpu_runtime") if device == "cpu" else {})
            ]
    lines += [*_steps(manifest.choices.get("tokenizer")), *_texts(manifest.choices.get("texts"))]
    calibrated: Any = manifest.choices.get("calibration")
    if calibrated:
        lines.append(f"  {'scores':9} of logits divided by {calibrated['temperature']:.4g}")
    for file, figures in (parity.get("data") or {}).items():
        measured = ", ".join(f"{name} {figures[key]:.4f}" for key, name in MEASURED.items() if key in figures)
        lines.append(f"  {'data':9} {figures['metric']} on {figures['rows']} rows of {file}: {measured}")
        lines += [f"  {'':9} {line}" for line in decisions(figures)]
    return lines


def decisions(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield how many decisions on the user's data differ from the checkpoint's, and how well scores are calibrated."""
    for key, title in DECISIONS.items():
        if values := figures.get(key):
            yield f"{title}: " + ", ".join(f"{MEASURED[name]} {_figure(value)}" for name, value in values.items())


def _mixed(manifest: Manifest) -> list[str]:
    """Return which products a search kept finer, or why it published fp32; nothing if there was no search."""
    search = read_search(manifest)
    if search is None:
        return []
    if search.why_fp32:
        return [f"fp32: {search.why_fp32}"]
    rest, finer = search.products - len(search.kept), FINER[search.precision]
    kept = f"{len(search.kept)} kept in {finer} ({places(search.kept)})"
    speed = f"{search.speedup:g} x as fast as fp32"
    return [f"{search.precision} for {rest} of {search.products} products, {kept}, {speed}"]


def _steps(tokenizer: Any) -> list[str]:
    """Return how an encoder is served on CPUs: with a compiled tokenizer, or with Python steps and why."""
    if tokenizer is None:
        return []
    if tokenizer["compiled"]:
        return [f"  {'tokenizer':9} compiled; same ids for {tokenizer['texts_compared']:,} texts"]
    return [f"  {'tokenizer':9} in Python, not compiled: {tokenizer['reason']}"]


def _texts(texts: Any) -> list[str]:
    """Return on which texts the answers were compared, and how well the tokenizer knows hfx's texts."""
    if texts is None:  # an older hfx had no others than its own
        return []
    share, own = texts["unknown_share"], texts["known"] + texts["unknown"]
    line = f"compared on {own} of hfx and {texts['made']} made of the vocabulary"
    advice = "" if share < NOTED else "; --verify-data FILE compares answers to texts of the model's own kind"
    return [f"  {'texts':9} {line}; {100 * share:.0f} % of the tokens of hfx's texts are unknown{advice}"]


def _trials(choice: Any) -> list[str]:
    """Return the times of the compared CPU runtimes, and whether other processes used the cores meanwhile."""
    times = (choice or {}).get("milliseconds", {})
    if len(times) < 2:
        return []
    lines = [
        f"{_shape(shape)}: "
        + ", ".join(f"{RUNTIMES.get(name, name)} {each[shape]:.2f} ms" for name, each in times.items())
        for shape in next(iter(times.values()))
    ]
    if other := choice.get("other_cores"):
        lines.append(f"other processes kept {other:g} of the cores busy: times are more accurate on an idle machine")
    return lines


def details(manifest: Manifest) -> list[str]:
    """Return all figures of the gate, the times of steps, and the errors of products."""
    search = read_search(manifest)
    errors = {} if search is None else {"error of each product alone": search.ranking}
    seconds = manifest.choices.get("seconds", {})
    figures: dict[str, Any] = {"seconds of each step": seconds, **errors}
    return ["Figures:", *_figures("", manifest.parity), *_figures("", figures)]


def _figures(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for the figures of each mapping in `figures`."""
    plain = [f"{key} {_figure(value)}" for key, value in figures.items() if not isinstance(value, Mapping)]
    if plain:
        yield f"  {name}: {', '.join(plain)}"
    for key, value in figures.items():
        if isinstance(value, Mapping):
            yield from _figures(f"{name} {key}".strip(), value)


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def next_command(repository: Path, name: str) -> str:
    """Return the command that serves the published model: a reload of a running `hfx serve`, or a new `hfx serve`."""
    from hfx.triton.commands import servers_of

    folder = "" if repository == DEFAULT_REPOSITORY else shlex.quote(str(repository))
    if servers_of(repository):
        return f"Next: hfx reload {name}{folder and f' --repository {folder}'}"
    return f"Next: hfx serve{folder and f' {folder}'}"


def _math(manifest: Manifest) -> str:
    """Return the type in which an fp32 model is computed, if it is not float32."""
    return ", computed in bfloat16" if manifest.choices.get("cpu_math") == "bf16" else ""


def _runtime(choice: Any) -> str:
    """Return the CPU's runtime, and why it was chosen."""
    if not choice:
        return ""
    name = RUNTIMES.get(choice["runtime"], choice["runtime"])
    refused = "; ".join(
        f"{RUNTIMES.get(other, other)} can't run it: {why}" for other, why in choice.get("refused", {}).items()
    )
    if refused:
        return f" on {name} ({refused.rstrip('.')})"
    if len(near := choice.get("near", [])) > 1:
        others = " and ".join(RUNTIMES.get(other, other) for other in near[1:])
        return f" on {name}, as fast as {others} (within 5 %)"
    if choice.get("requested") == "auto" and len(choice["milliseconds"]) > 1:
        return f" on {name}, the fastest of {len(choice['milliseconds'])} runtimes on this machine"
    return f" on {name}"


def equal_share(figures: Any) -> float | None:
    """Return the share of all answers, or next tokens, that equal the checkpoint's. A tie is not equal.

    Returns None for `figures` of a manifest that lack this share.
    """
    try:  # a generator's agreement is that of the positions without a tie
        decided = 1 - figures["forced"]["ties"] if "forced" in figures else 1
        return float(figures["agreement"] * decided)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def equal_answers(figures: Mapping[str, Any]) -> str:
    """Return the share of answers, or next tokens, that equal the checkpoint's, and the share of ties."""
    count, kind = figures.get("requests"), "answers"
    if forced := figures.get("forced"):
        count, kind = forced["positions"], "next tokens"
    share, ties = equal_share(figures) or 0.0, (forced or figures)["ties"]
    return f"{100 * share:.2f} % of {count} {kind} equal the checkpoint's" + (
        f", and {100 * ties:.2f} % are ties" if ties else ""
    )


def _agreement(figures: Mapping[str, Any]) -> list[str]:
    """Return the agreement of an encoder's file, or a generator's engine, with the checkpoint."""
    if "unverified" in figures:
        return [f"not compared with the checkpoint on this machine: {figures['unverified']}"]
    if "forced" in figures:
        return [f"{equal_answers(figures)}{_longest(figures)}", _whole_texts(figures)]
    order = figures.get("rank_correlation")
    ranks = "" if order is None else f"; rank correlation of scores {order:.4f}"
    return [f"{equal_answers(figures)}{ranks}"]


def _longest(figures: Mapping[str, Any]) -> str:
    """Return the agreement on long texts, and the longest prompt; empty if an older hfx did not measure it."""
    long = figures.get("long")
    if not long:
        return ""
    share = equal_share({**long, "forced": long}) or 0.0
    return f"; and {100 * share:.2f} % of {long['positions']} in prompts of up to {long['longest']} tokens"


def _whole_texts(figures: Mapping[str, Any]) -> str:
    """Return the share of a generator's whole texts that are equal."""
    beams = figures["beams"]
    kinds = {"greedy": figures["greedy"]} | ({f"{beams['num_beams']} beams": beams} if beams else {})
    shares = [f"{100 * whole['same']:.1f} % of {whole['texts']} ({name})" for name, whole in kinds.items()]
    line = f"{' and '.join(shares)} whole texts are identical"
    if all(whole["same"] == 1 for whole in kinds.values()):
        return line
    return f"{line}: one different token changes the rest of a text"


def _shape(shape: str) -> str:
    """Return `1x16` (rows x tokens), or a generator's `1x16+16` (new tokens), in words."""
    rows, _, tokens = shape.partition("x")
    read, plus, new = tokens.partition("+")
    return f"{rows} text{'s' if rows != '1' else ''} of {read} tokens" + (f" and {new} new ones" if plus else "")
