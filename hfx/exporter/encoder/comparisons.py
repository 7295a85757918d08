"""Compare the staged files of an encoder with the checkpoint in torch, on the gate's texts and on the user's data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hfx import names
from hfx.errors import CheckpointUnsupported, RequestRefused, UsageError
from hfx.exporter.encoder import gate
from hfx.exporter.encoder.fusion import rows_file
from hfx.exporter.encoder.nets import EncoderArtefacts
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.parity_texts import bundled_texts, edge_texts
from hfx.exporter.tokenizer import with_embeddings
from hfx.exporter.verify import REFERENCE_FILE, Recorded, check_drop, write_recorded
from hfx.local import Device, Request, Tensors, read_config
from hfx.local.encoder import LocalModel
from hfx.python_backends.tasks import TASKS


def answer_in_torch(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Get the checkpoint's own answers to the bundled texts, from the tokens of the staged tokenizer."""
    texts = [*bundled_texts(), *edge_texts(plan.max_length)]
    samples = plan.kind.samples(with_embeddings(plan.checkpoint, artefacts.tokenizer, texts))
    samples = [sample | plan.options_of(i) for i, sample in enumerate(samples)]
    try:
        model, reference = _reference(plan, artefacts, [each for each in samples if _has_tokens(plan, artefacts, each)])
    except RequestRefused as refusal:
        raise CheckpointUnsupported(
            f"{plan.checkpoint.id} can't take a text that every export is compared by. {refusal.message}",
            "Where it reads too few tokens, a larger model_max_length in tokenizer_config.json may help.",
        ) from refusal
    checked = gate.check_tokens(model, plan.kind, artefacts.tokenizer, reference)
    recorded = Recorded(tuple(map(dict, reference.requests)), tuple(reference.answers))
    write_recorded(recorded, artefacts.staging.root / plan.name / REFERENCE_FILE)
    return replace(artefacts, reference=reference, tokenizing=model, parity={"tokenized_alike": checked})


def _has_tokens(plan: EncoderPlan, artefacts: EncoderArtefacts, request: Request) -> bool:
    """Whether a request has any tokens and, for fill-mask, a mask that is not truncated.

    Other requests would be refused, so the caller leaves them out.

    If the tokenizer adds no special tokens, some texts have no tokens. In rows of several sequences, a question or a
    label always has some.
    """
    if plan.kind.takes_empty or plan.kind.item_rank > 1:
        return True
    [ids, *_] = plan.kind.expected_ids(artefacts.tokenizer, dict(request), plan.max_length)
    return artefacts.tokenizer.mask_token_id in ids if TASKS[plan.kind.task].of_masks else len(ids) > 0


def compare(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> EncoderArtefacts:
    """Compare the file for `device` with the checkpoint.

    Raises VerificationFailed, with the figures, if it differs too much.
    """
    assert artefacts.reference is not None
    model = artefacts.tokenizing if device == "cpu" else opened(plan, artefacts, device)
    assert model is not None
    precision = plan.built[device]
    figures = gate.measure(model, plan.kind, artefacts.reference)
    math = plan.cpu_math if device == "cpu" else "fp32"
    what = f"The {precision} file for {device.upper()}{' in bfloat16' if math == 'bf16' else ''}"
    gate.judge(what, figures, gate.limits(precision, plan.max_drop, math, labelled=bool(plan.verify_data)))
    measured = {"precision": precision, "kind": model.kind, **figures.as_json()}
    rows = rows_file(artefacts.net_folder(plan) / artefacts.files[device])
    if device == "gpu" and rows.exists():
        measured["rows_file"] = _compare_rows(plan, artefacts, model, rows)
    return replace(artefacts, parity={**artefacts.parity, device: measured})


def _compare_rows(plan: EncoderPlan, artefacts: EncoderArtefacts, model: LocalModel, path: Path) -> dict[str, Any]:
    """Compare the file of rectangular batches with the checkpoint, on the provider that runs `model`.

    Return the figures. Raises VerificationFailed, with the figures, if it differs too much.
    """
    assert artefacts.reference is not None
    net = RowsNet(model, read_config(path.parent.parent / "configs" / "gpu.pbtxt"), path)
    figures = gate.measure(model, plan.kind, artefacts.reference, net.run)
    limits = gate.limits(plan.built["gpu"], plan.max_drop, labelled=bool(plan.verify_data))
    # Batches are padded to different widths here, and kernels for GPUs depend on the width.
    gate.judge(f"{path.name}, the graph of rectangular batches,", figures, replace(limits, batch_delta=None))
    return figures.as_json()


class RowsNet:
    """Runs the graph of rectangular batches on the encoded requests of an open model, one padded row for a sequence.

    Each batch ends with a row of padding, as those that fill a batch up to a size of which there are few.
    """

    def __init__(self, model: LocalModel, config: dict[str, Any], path: Path) -> None:
        from hfx.python_backends.onnxruntime.sessions import open_session

        settings = model.encoder.settings
        self._padding = {names.INPUT_IDS: settings.pad_id, names.TOKEN_TYPE_IDS: settings.pad_type_id}
        self._model, self._session = model, open_session(config, path, model.kind, 0)

    def run(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        """Return the outputs for each request: [1, ...], or [1, sequences, ...] for requests of several sequences."""
        size = self._model.max_batch_size
        chunks = (encoded[start : start + size] for start in range(0, len(encoded), size))
        return [outputs for chunk in chunks for outputs in self._batch(chunk)]

    def _batch(self, encoded: Sequence[Tensors]) -> list[Tensors]:
        leads = [request[names.ATTENTION_MASK].shape[:-1] for request in encoded]
        counts = [int(np.prod(lead)) for lead in leads]
        width = max(request[names.ATTENTION_MASK].shape[-1] for request in encoded)
        feed = {}
        for name in (tensor.name for tensor in self._session.inputs):
            feed[name] = np.full((sum(counts) + 1, width), self._padding.get(name, 0), np.int32)
            rows = (row for request in encoded for row in request[name].reshape(-1, request[name].shape[-1]))
            for target, row in zip(feed[name], rows, strict=False):
                target[: len(row)] = row
        outputs = self._session.run(feed, self._model.layout.outputs)
        ends = np.cumsum(counts)[:-1]
        split = {name: np.split(value[: sum(counts)], ends) for name, value in outputs.items()}
        return [
            {name: parts[at].reshape(*lead, *parts[at].shape[1:]) for name, parts in split.items()}
            for at, lead in enumerate(leads)
        ]


def measure(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> EncoderArtefacts:
    """Measure the task's metric on the user's data, for torch and for the file for `device`.

    Raises VerificationFailed if the metric falls by more than --max-drop.
    """
    results: dict[str, Any] = {}
    model = opened(plan, artefacts, device)
    for file, (data, reference) in artefacts.answered.items():
        expected, metric = data.measured(plan.kind, reference.answers), data.metric(plan.kind)
        outputs = model.run(reference.encoded)
        answers = [model.answer(r, e, o) for r, e, o in zip(data.requests, reference.encoded, outputs, strict=True)]
        value = data.measured(plan.kind, answers)
        check_drop(plan, metric, file, device, expected, value)
        before = artefacts.parity.get("data", {}).get(file)
        figures = before or {"metric": metric, "rows": len(data.targets), "torch": expected}
        results[file] = {**figures, device: value}
    return replace(artefacts, parity={**artefacts.parity, "data": results})


def answer_data_in_torch(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Get the checkpoint's own answers to the user's data, if that was not done before."""
    if artefacts.answered:
        return artefacts
    answered = {
        file: (data, _reference(plan, artefacts, data.requests)[1]) for file, data in artefacts.labelled.items()
    }
    return replace(artefacts, answered=answered)


def opened(plan: EncoderPlan, artefacts: EncoderArtefacts, device: Device) -> LocalModel:
    """Open the files for a device on that device; open files for GPUs on the CPU if there is no GPU."""
    if device == "gpu":
        with suppress(UsageError):
            return LocalModel.open(artefacts.staging.root, plan.name, "gpu", "GPU")
    return LocalModel.open(artefacts.staging.root, plan.name, device, "CPU")


def _reference(
    plan: EncoderPlan, artefacts: EncoderArtefacts, requests: Sequence[Request]
) -> tuple[LocalModel, gate.Reference]:
    """Return the model that tokenizes `requests` (the CPU's, if there is one), and the checkpoint's answers."""
    model = LocalModel.open(artefacts.staging.root, plan.name, next(iter(plan.built)), "CPU")
    reference = gate.make_reference(model, requests, artefacts.model, artefacts.inputs, artefacts.pooler)
    return model, reference
