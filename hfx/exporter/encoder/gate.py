"""The gate: compare the files to be served, run by the code that will serve them, with the checkpoint in torch.

This module has the limits of each precision, with their reasons. The gate runs on staged folders; a model that fails it
is not published.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hfx import names
from hfx.errors import CheckpointUnsupported, VerificationFailed
from hfx.exporter.encoder.kinds import EncoderKind
from hfx.exporter.progress import counted
from hfx.exporter.ranking import rank_correlation
from hfx.local import Answer, Request, Tensors
from hfx.local.encoder import LocalModel
from hfx.manifest import Manifest
from hfx.python_backends.labelled import LABEL
from hfx.python_backends.settings import Settings

if TYPE_CHECKING:
    import torch

Run = Callable[[Sequence[Tensors]], list[Tensors]]  # returns the outputs of a net for each encoded request
Place = tuple[int, tuple[int, ...]]  # of a sequence: the index of its request, and its index in the request
TOKENS_A_FORWARD = 4096  # limits the memory of one forward call
SHOWN_CHARACTERS = 120  # of a request or an answer
ENOUGH = 32  # texts made of the vocabulary whose figures are limited on their own; those of fewer are left to chance
ALONE = 64  # requests that are also run one by one, to see that a batch doesn't change an answer


@dataclass(frozen=True)
class Limits:
    """The limits of one precision. A figure whose limit is None is not limited.

    `agreement` is the least share of equal answers; ties count as equal. `drift` is the largest mean difference of
    scores. `delta` is the largest difference of any output of the net, as a share of the largest output (at least 1).
    `batch_delta` is the largest difference of an output between a request alone and in a batch. `ranks` is the least
    rank correlation of the scores of pairs, for embedders and re-rankers.
    """

    agreement: float
    drift: float
    delta: float | None
    batch_delta: float | None
    ranks: float | None = None


LIMITS: dict[str, Limits] = {
    # float32 sums in another order: 1e-6 to 1e-5 over 12 layers. A wrong graph is off by more than 1e-2. Answers may
    # differ only where two scores are equal to the last bits.
    "fp32": Limits(agreement=0.995, drift=1e-4, delta=1e-3, batch_delta=0.0, ranks=0.999),
    # An fp32 file computed in bfloat16, with 8 bits of mantissa: seven small trained models had mean drifts of 1e-5 to
    # 4e-3 and 95.8 to 100 % equal answers; this share was lowest for answers that are a span or a list of entities.
    "bf16": Limits(agreement=0.95, drift=1e-2, delta=None, batch_delta=0.0, ranks=0.95),
    # 11 bits of mantissa: 1e-3 per operation, averaged out over a row. GPU libraries choose kernels by batch size, so
    # the last bits inevitably depend on it.
    "fp16": Limits(agreement=0.985, drift=5e-3, delta=None, batch_delta=None, ranks=0.99),
    # 8 bits: answers with close scores may change (the bundled texts are far from what most models were trained on).
    # More changes than these few mean that an outlier weight or activation was lost.
    # Ten small embedders and re-rankers, most with random weights, had rank correlations of 0.990 to 0.99999.
    "int8": Limits(agreement=0.95, drift=2e-2, delta=None, batch_delta=0.0, ranks=0.95),
}


def limits(accuracy: str, max_drop: float | None, labelled: bool = False) -> Limits:
    """Return the limits of a file of this `accuracy`, a key of LIMITS.

    `max_drop` is the share of answers that the user allows to change. With `labelled` data, the ranking metric on that
    data replaces the rank correlation on the gate's own texts.
    """
    chosen = LIMITS[accuracy]
    if labelled:
        chosen = replace(chosen, ranks=None)
    if max_drop is None:
        return chosen
    ranks = None if chosen.ranks is None else min(chosen.ranks, 1.0 - max_drop)
    return replace(chosen, agreement=1.0 - max_drop, drift=max(chosen.drift, max_drop), ranks=ranks)


def accuracy_of(manifest: Manifest, device: str) -> str:
    """Return the accuracy of a published file for `device`: its precision, or the type that it is computed in.

    Only a file for CPUs can be computed in another type than its own.
    """
    math = {"cpu": manifest.choices.get("cpu_math")}.get(device)
    return str(math or getattr(manifest.precision, device))


@dataclass(frozen=True)
class Reference:
    """The checkpoint's side of the comparison: requests, their tokens, and torch's outputs and answers.

    The last `made` requests have texts that are made of the vocabulary.
    """

    requests: Sequence[Request]
    encoded: Sequence[Tensors]
    outputs: Sequence[Tensors]
    answers: Sequence[Answer]
    made: int = 0

    def answers_of(self, model: LocalModel, outputs: Sequence[Tensors]) -> list[Answer]:
        """Return the answers to the requests that the last step of `model` makes of a net's `outputs`."""
        return [model.answer(*row) for row in zip(self.requests, self.encoded, outputs, strict=True)]


@dataclass(frozen=True)
class Figures:
    """The figures measured on one file.

    `delta` is the largest difference of any output of the net, and `delta_share` is the same as a share of the largest
    output (at least 1). `agreement` is the share of equal answers. `ties` is the share of answers that differ, but only
    between answers that the checkpoint scores alike. Drifts are differences of scores. `batch_delta` is the largest
    difference of an output between a request alone and in a mixed batch; None if it is not limited, as it is not
    measured then. `rank_correlation` is the rank correlation of the scores of pairs (ranking.py); None for other tasks.
    `made_agreement` (with ties), `made_drift` and `made_ranks` are the same of the texts that are made of the
    vocabulary alone; None if there are none. `by_label` is the share of equal results of each label, with ties, where
    answers are lists of them.
    """

    requests: int
    delta: float
    delta_share: float
    agreement: float
    ties: float
    mean_drift: float
    max_drift: float
    batch_delta: float | None
    rank_correlation: float | None = None
    made_agreement: float | None = None
    made_drift: float | None = None
    made_ranks: float | None = None
    by_label: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the figures for the manifest."""
        return {
            name: float(f"{value:.6g}") if isinstance(value, float) else value
            for name, value in asdict(self).items()
            if value != {}
        }


@dataclass(frozen=True)
class Gate:
    """What every file of an export is compared with, and how much it may differ: `limits` has the last two fields."""

    kind: EncoderKind
    reference: Reference
    max_drop: float | None
    labelled: bool

    def passed(self, what: str, model: LocalModel, allowed: Limits, run: Run | None = None) -> Figures:
        """Return the figures of `model`, or of another net that `run` runs.

        Raises VerificationFailed, with the figures, if they are not within `allowed`; `what` names the file.
        """
        figures = measure(model, self.kind, self.reference, run, 0 if allowed.batch_delta is None else ALONE)
        judge(what, figures, allowed)
        return figures


def make_reference(
    model: LocalModel,
    requests: Sequence[Request],
    checkpoint: Any,
    inputs: tuple[str, ...],
    pooler: torch.nn.Module | None,
    change: Callable[[list[Tensors]], list[Tensors]] = list,
) -> Reference:
    """Answer `requests` with the torch model `checkpoint`, from the tokens of the served tokenizer, without padding.

    The export changes the model's outputs by `change`.
    """
    encoded = model.encode(requests)
    read = _with_own_vectors(requests, encoded, pooler)
    outputs = forward(checkpoint, read, inputs, model.layout.outputs, model.token_outputs, pooler)
    outputs = change(outputs)
    answers = [model.answer(r, e, o) for r, e, o in zip(requests, encoded, outputs, strict=True)]
    return Reference(requests, encoded, outputs, answers)


def _with_own_vectors(requests: Sequence[Request], encoded: Sequence[Tensors], pooler: Any) -> list[Tensors]:
    """Return `encoded` with the vectors that the checkpoint's own encoder of labels gives, if it has one."""
    if getattr(pooler, "labels", None) is None:
        return list(encoded)
    own = [pooler.labels.vectors(request[names.CANDIDATE_LABELS])[None] for request in requests]
    return [{**each, names.LABEL_VECTORS: vectors} for each, vectors in zip(encoded, own, strict=True)]


def forward(
    model: torch.nn.Module,
    requests: Sequence[Tensors],
    inputs: tuple[str, ...],
    outputs: Sequence[str],
    by_token: frozenset[str],
    pooler: torch.nn.Module | None,
) -> list[Tensors]:
    """Return the net's outputs for each encoded request (one row each: `[1, width]` or `[1, sequences, width]`).

    The model sees no padding, as in a pipeline that gets one text; sequences of equal length, with equally many labels,
    share a forward call. The outputs in `by_token` are zero at padding. Without `pooler`, the outputs are the model's
    own outputs of these names. Raises CheckpointUnsupported if the model itself fails.
    """
    by_length: dict[tuple[int, int], list[Place]] = defaultdict(list)
    for index, request in enumerate(requests):
        mask = request[names.ATTENTION_MASK]
        for place in np.ndindex(mask.shape[:-1]):
            vectors = requests[index].get(names.LABEL_VECTORS)
            labels = int(np.count_nonzero(mask[place] == LABEL)) if vectors is None else vectors.shape[1]
            by_length[int(np.count_nonzero(mask[place])), labels].append((index, place))
    results: list[Tensors] = [{} for _ in requests]
    passed = 0  # the length of the longest text so far that the model has answered, in tokens
    for (length, _), members in counted(sorted(by_length.items()), "lengths of texts"):
        size = max(1, TOKENS_A_FORWARD // max(1, length))
        for chunk in (members[start : start + size] for start in range(0, len(members), size)):
            feed = {name: np.stack([_cell(requests[i], name, place, length) for i, place in chunk]) for name in inputs}
            for name, rows in _run(model, feed, outputs, pooler, passed).items():
                for (index, place), row in zip(chunk, rows, strict=True):
                    lead = requests[index][names.ATTENTION_MASK].shape
                    shape = (*lead, *row.shape[1:]) if name in by_token else (*lead[:-1], *row.shape)
                    target = results[index].setdefault(name, np.zeros(shape, row.dtype))
                    target[place][: len(row)] = row
        passed = length
    return results


def _cell(request: Tensors, name: str, place: tuple[int, ...], length: int) -> NDArray[Any]:
    """Return the input `name` of one sequence: its first `length` tokens, or the vectors of the labels of its row."""
    value: NDArray[Any] = request[name][place[0]] if name == names.LABEL_VECTORS else request[name][place][:length]
    return value


def _run(
    model: torch.nn.Module, flat: Tensors, outputs: Sequence[str], pooler: torch.nn.Module | None, passed: int
) -> Tensors:
    """Return the outputs for texts of one length; texts of up to `passed` tokens have succeeded before."""
    import torch

    more = [torch.from_numpy(flat[name]) for name in (names.LABEL_VECTORS,) if name in flat]
    tokens = {name: value.astype(np.int64) for name, value in flat.items() if name != names.LABEL_VECTORS}
    feed = {name: torch.from_numpy(value) for name, value in tokens.items()}
    mask = feed[names.ATTENTION_MASK]
    feed[names.ATTENTION_MASK] = mask.clamp(0, 1)  # 2: attended to, not pooled; -1: not attended to
    rows, length = feed[names.INPUT_IDS].shape
    with torch.inference_mode():
        try:
            result = model(**feed)
        except (RuntimeError, IndexError, ValueError) as error:
            # BART's classifiers refuse a batch of texts that spell "</s>" a different number of times, but answer such
            # texts one by one.
            if rows > 1 and isinstance(error, ValueError):
                parts = ({name: value[i : i + 1] for name, value in flat.items()} for i in range(rows))
                alone = [_run(model, part, outputs, pooler, passed) for part in parts]
                return {name: np.concatenate([row[name] for row in alone]) for name in alone[0]}
            shorter = (
                f"Texts of up to {passed} tokens do not fail. If length is the reason, pass --max-length {passed}."
            )
            raise CheckpointUnsupported(
                f"{type(model).__name__} itself fails on a text of {length} tokens: {str(error).splitlines()[0][:200]}",
                shorter if passed else "Correct the checkpoint's files until transformers runs it.",
            ) from error
        if pooler is None:
            return {name: getattr(result, name).float().numpy() for name in outputs}
        vectors = pooler(getattr(result, str(pooler.reads)).float(), mask, *more)
        looked_up: Any = pooler.look_up
        return {outputs[0]: (vectors + looked_up(feed[names.INPUT_IDS], mask)).numpy()}


def check_tokens(model: LocalModel, kind: EncoderKind, tokenizer: Any, reference: Reference) -> int:
    """Compare each request's token ids with transformers' own, and return the number of requests.

    Raises VerificationFailed if the ids of a request differ.
    """
    length = model.encoder.settings.max_length
    for request, encoded in zip(reference.requests, reference.encoded, strict=True):
        expected = kind.expected_ids(tokenizer, prompted(request, model.encoder.settings), length)
        mask = encoded[names.ATTENTION_MASK].reshape(-1, encoded[names.ATTENTION_MASK].shape[-1])
        ids = encoded[names.INPUT_IDS].reshape(mask.shape)
        ours = [row[: np.count_nonzero(m)].tolist() for row, m in zip(ids, mask, strict=True)]
        if ours != expected:
            raise VerificationFailed(
                f"The served tokenizer and the checkpoint's differ on {one_line(request)}.",
                "Please report this checkpoint's tokenizer; nothing was published.",
            )
    return len(reference.requests)


def prompted(request: Request, settings: Settings) -> dict[str, Any]:
    """Return `request` with its prompt put before the text (the query of a pair), or as a field for the template."""
    text = names.QUERY if names.QUERY in request else names.TEXT_INPUT
    named = request.get(names.PROMPT_NAME)
    prompt = settings.default_prompt if named is None else (settings.prompts or {})[named]
    if settings.template:
        return {**request, names.PROMPT: prompt}
    return {**request, text: prompt + request[text]} if prompt else dict(request)


def measure(
    model: LocalModel, kind: EncoderKind, reference: Reference, run: Run | None = None, alone: int = ALONE
) -> Figures:
    """Run `model` on the reference's tokens, in batches and `alone` of them one by one; compare outputs and answers.

    With `run`, another net makes the outputs.
    """
    run = run or model.run
    outputs = run(reference.encoded)
    masks = [encoded[names.ATTENTION_MASK].astype(bool) for encoded in reference.encoded]
    deltas = [_delta(model, r, o, m) for r, o, m in zip(reference.outputs, outputs, masks, strict=True)]
    delta = float(np.max(deltas))  # NaN if any is
    largest = max(float(np.abs(v).max(initial=0.0)) for r in reference.outputs for v in r.values())
    answers = reference.answers_of(model, outputs)
    compared = [kind.compare(*pair) for pair in zip(reference.answers, answers, strict=True)]
    chosen = np.linspace(0, len(outputs) - 1, min(alone, len(outputs))).astype(int)
    alone_deltas = [_delta(model, outputs[i], run([reference.encoded[i]])[0], masks[i]) for i in chosen]
    drifts = [comparison.drift for comparison in compared]
    made = slice(len(compared) - reference.made, None) if reference.made >= ENOUGH else slice(0)
    of_made = compared[made]
    return Figures(
        requests=len(outputs),
        delta=delta,
        delta_share=delta / max(1.0, largest),
        agreement=sum(comparison.same for comparison in compared) / len(compared),
        ties=sum(comparison.tie for comparison in compared) / len(compared),
        mean_drift=float(np.mean(drifts)),
        max_drift=float(np.max(drifts)),
        batch_delta=float(np.max(alone_deltas)) if alone_deltas else None,
        rank_correlation=rank_correlation(kind, reference.requests, reference.answers, answers),
        made_agreement=sum(each.same + each.tie for each in of_made) / len(of_made) if of_made else None,
        made_drift=float(np.mean(drifts[made])) if of_made else None,
        made_ranks=rank_correlation(kind, reference.requests[made], reference.answers[made], answers[made]),
        by_label=kind.by_label(reference.answers, answers),
    )


def judge(what: str, figures: Figures, limits: Limits) -> None:
    """Raise VerificationFailed, with the figures that fail, unless all are within `limits`. A NaN is never within."""
    checks = {f"outputs finite, largest difference {figures.delta:.2e}": bool(np.isfinite(figures.delta))}
    # A fault of rare tokens would be lost in the means over all texts.
    for where, agreement, drift, ranks in (
        ("", figures.agreement + figures.ties, figures.mean_drift, figures.rank_correlation),
        (" of texts made of the vocabulary", figures.made_agreement, figures.made_drift, figures.made_ranks),
    ):
        if agreement is not None and drift is not None:
            text = f"agreement with ties{where} {agreement:.4f}, at least {limits.agreement:.4f}"
            checks[text] = agreement >= limits.agreement
            checks[f"mean score drift{where} {drift:.2e}, at most {limits.drift:.2e}"] = drift <= limits.drift
        if limits.ranks is not None and ranks is not None:
            text = f"rank correlation of pairs{where} {ranks:.4f}, at least {limits.ranks:.4f}"
            checks[text] = ranks >= limits.ranks
    if figures.by_label:
        label, share = min(figures.by_label.items(), key=lambda each: each[1])
        checks[f"F1 with ties of {label!r} {share:.4f}, at least {limits.agreement:.4f}"] = share >= limits.agreement
    if limits.batch_delta is not None:
        assert figures.batch_delta is not None
        text = f"outputs depend on their batch by {figures.batch_delta:.2e}, at most {limits.batch_delta:g}"
        checks[text] = figures.batch_delta <= limits.batch_delta
    if limits.delta is not None:
        text = f"largest difference {figures.delta_share:.2e} of the largest output, at most {limits.delta:.2e}"
        checks[text] = figures.delta_share <= limits.delta
    if failed := [text for text, passed in checks.items() if not passed]:
        raise VerificationFailed(
            f"{what} does not answer like the checkpoint on {figures.requests} requests: {'; '.join(failed)}.",
            "Nothing was published. Use other --precision, --cpu-runtime or --cpu-math, or accept more by --max-drop.",
        )


def _delta(model: LocalModel, reference: Tensors, outputs: Tensors, mask: NDArray[np.bool_]) -> float:
    """Return the largest difference of any output, NaN if any output is NaN; outputs of padding are left out.

    An output for mask tokens [1, masks, ...] may have more rows than the text has masks: as many as the text with the
    most masks in its batch.
    """
    worst = []
    for name, expected in reference.items():
        found = outputs[name]
        if name in model.mask_outputs:
            masks = min(expected.shape[1], found.shape[1])
            expected, found = expected[:, :masks], found[:, :masks]
        found = found[..., : expected.shape[-1]]  # the net of an adapter may have room for more labels
        difference = np.abs(found.astype(np.float64) - expected)
        worst.append(np.max(difference[mask] if name in model.token_outputs else difference, initial=0.0))
    return float(np.max(worst))


def one_line(values: Request) -> str:
    """Return a request or an answer as JSON on one line, cut after SHOWN_CHARACTERS."""
    text = json.dumps(dict(values), ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
