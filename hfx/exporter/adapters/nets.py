"""Write the net of an adapter, and compare answers of batches that mix it with others on its backbone."""

from __future__ import annotations

import filecmp
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from hfx import names, native
from hfx.errors import VerificationFailed
from hfx.exporter import runtime
from hfx.exporter.adapters.graph import ADAPTER, ADAPTERS, AdaptedProducts, add_inputs, add_pool
from hfx.exporter.adapters.part import MIXED_ADAPTERS, MIXED_TEXTS, RECORD, AdapterPart, Donor, link_or_copy
from hfx.exporter.adapters.pool import LAYOUT_FILE, Layout, Matrix
from hfx.exporter.encoder import folders
from hfx.exporter.encoder.build import save
from hfx.exporter.encoder.linears import float_weights
from hfx.exporter.encoder.nets import FILE_NAMES, EncoderArtefacts
from hfx.exporter.encoder.one_hop import Compiled
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.encoder.trace import TRACED, example
from hfx.exporter.model_files import write_tokenizer_json
from hfx.exporter.quantize.encoder import row_source, row_wise
from hfx.local import Tensors
from hfx.manifest import hash_file, net_sha256
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE, ERRORS, SHARED_NET, SKIPS_PADDING


def compiled_tokenizer(donor: Donor, tokenizer: Any) -> Compiled | None:
    """Return the compiled tokenizer of `donor`; None if `tokenizer` is another one."""
    folder = donor.repository / (donor.manifest.name + names.TOKENIZE_SUFFIX) / "1"
    with tempfile.TemporaryDirectory(prefix="hfx-tokenizer-") as temporary:
        file = Path(temporary) / "tokenizer.json"
        write_tokenizer_json(tokenizer, file)
        if not filecmp.cmp(file, folder / file.name, shallow=False):
            return None
    stated: Any = donor.manifest.choices["tokenizer"]
    if not stated["compiled"]:
        return Compiled(why_not=stated["reason"])
    return Compiled((folder / names.COMPILED_TOKENIZER).read_bytes(), stated["texts_compared"])


def write_adapted(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Write the net in the precision for CPUs, its layout of the pool, and the adapter's own weights.

    Raises CheckpointUnsupported if the graph lacks a product that is adapted, or if the adapter does not fit the net
    that it shares.
    """
    part, folder = plan.adapter, artefacts.net_folder(plan)
    assert part is not None and plan.cpu_precision is not None
    artefacts.staging.folder(plan.name + names.NET_SUFFIX)
    folder.mkdir()
    name = FILE_NAMES[plan.cpu_precision]
    path = folder / name
    if part.donor is None:
        skips_padding, weights, shared = _write_first(plan, artefacts, part, path)
    else:
        skips_padding, weights, shared = _write_linked(artefacts, part, path)
    operators = folders.copy_operators(folder, skips_padding) | {SHARED_NET: shared}
    choice = runtime.CpuChoice("native", operators=operators)
    net = {"max_length": plan.max_length, SKIPS_PADDING: skips_padding, SHARED_NET: shared}
    choices = {**artefacts.choices, "int8_weights": weights, RECORD: part.record() | net}
    return replace(artefacts, files={"cpu": name}, candidates={"native": (choice, path)}, choices=choices)


def _write_first(
    plan: EncoderPlan, artefacts: EncoderArtefacts, part: AdapterPart, path: Path
) -> tuple[bool, int, str]:
    assert artefacts.graph is not None
    adapted, graph = AdaptedProducts(part.rooms, Layout(plan.cpu_precision == "int8")), artefacts.graph
    kept = frozenset(float_weights(row_source(graph).graph)) if plan.cpu_precision == "fp32" else frozenset[str]()
    quantized = row_wise(graph, runtime.weight_levels(), kept, adapted)
    missing = sorted(({*part.rooms.ranks} | {*part.rooms.heads}) - {*adapted.layout.places})
    layout = adapted.layout
    layout.unused = [path for path in missing if _changes_nothing(artefacts.model, path, artefacts.inputs)]
    layout.refused |= dict.fromkeys(
        {*missing} - {*layout.unused, *layout.refused}, "is no product of the exported graph"
    )
    slot = part.slot(layout, artefacts.model)
    add_inputs(quantized.model.graph, layout.stride)
    save(quantized.model, path)
    layout.write(path.with_name(LAYOUT_FILE))
    add_pool(path, slot, part.labels_room)
    files = {name: hash_file(path.with_name(name)) for name in (path.name, f"{path.name}.data")}
    return quantized.skips_padding, quantized.weights, net_sha256(files, path.name)


def _write_linked(artefacts: EncoderArtefacts, part: AdapterPart, path: Path) -> tuple[bool, int, str]:
    donor = part.donor
    assert donor is not None
    part.slot(donor.layout, artefacts.model).astype("<f4").tofile(path.with_name(ADAPTER_FILE))
    for file in (path.name, path.name + ".data", LAYOUT_FILE):
        link_or_copy(donor.net / file, path.with_name(file))
    weights: Any = donor.manifest.choices["int8_weights"]
    graph = (donor.net / path.name).relative_to(donor.repository).as_posix()
    return bool(donor.record[SKIPS_PADDING]), int(weights), net_sha256(donor.manifest.files, graph)


def _changes_nothing(model: Any, path: str, inputs: tuple[str, ...]) -> bool:
    """Whether the outputs of `model` are the same, to the bit, without the weight of the layer at `path`."""
    import torch

    feed = dict(zip(inputs, example(model, inputs, *TRACED), strict=True))
    weight = model.get_submodule(path).weight
    with torch.no_grad():
        values = weight.clone()
        before = model(**feed)[0]
        weight.zero_()
        after = model(**feed)[0]
        weight.copy_(values)
    return torch.equal(before, after)


def graph_inputs(donor: Donor, plan: EncoderPlan) -> tuple[str, ...]:
    """Return the token inputs of the donor's net."""
    assert plan.cpu_precision is not None
    graph = onnx.load(donor.net / FILE_NAMES[plan.cpu_precision], load_external_data=False).graph
    return tuple(each.name for each in graph.input if each.name not in (names.ITEM_SHAPE, ADAPTER, ADAPTERS))


def compare_mixed(plan: EncoderPlan, artefacts: EncoderArtefacts) -> EncoderArtefacts:
    """Check that the answers of a batch that mixes adapters have the bits that each adapter alone gives.

    Raises VerificationFailed otherwise.
    """
    part, reference = plan.adapter, artefacts.reference
    assert part is not None and reference is not None
    record = artefacts.choices[RECORD]
    alike = [each for each in part.published if each.record[SHARED_NET] == record[SHARED_NET]][: MIXED_ADAPTERS - 1]
    slots = np.stack([_slot(artefacts.net_folder(plan)), *(_slot(each.net) for each in alike)])
    session: Any = _session(plan, artefacts)
    texts = reference.encoded[:MIXED_TEXTS]
    if not record[SKIPS_PADDING]:  # padding would be computed, and may change the last bit
        widths = [each[names.INPUT_IDS].shape[-1] for each in texts]
        most = max(set(widths), key=widths.count)
        texts = [each for each, width in zip(texts, widths, strict=True) if width == most]
    order = np.arange(len(texts), dtype=np.int32) % len(slots)
    feed = _feed(texts, artefacts.inputs)
    mixed = session.run(None, feed | {ADAPTER: order, ADAPTERS: slots})[0]
    for row, (text, at) in enumerate(zip(texts, order, strict=True)):
        alone = session.run(None, _feed([text], artefacts.inputs) | {ADAPTERS: slots[at : at + 1]})[0]
        if mixed[row][: len(alone[0])].tobytes() != alone[0].tobytes():  # values of tokens have padding behind them
            raise VerificationFailed(
                f"An answer of {plan.name} depends on the other adapters in its batch (text {row}).",
                "Please report this.",
            )
    return replace(artefacts, parity={**artefacts.parity, "mixed": {"adapters": len(slots), "texts": len(texts)}})


def _slot(net: Path) -> Matrix:
    return np.fromfile(net / ADAPTER_FILE, "<f4")


def _session(plan: EncoderPlan, artefacts: EncoderArtefacts) -> Any:
    import onnxruntime

    options, folder = onnxruntime.SessionOptions(), artefacts.net_folder(plan)
    options.intra_op_num_threads, options.log_severity_level = plan.threads, ERRORS
    options.register_custom_ops_library(str(native.library()))
    return onnxruntime.InferenceSession(str(folder / artefacts.files["cpu"]), options)


def _feed(texts: list[Tensors] | Any, inputs: tuple[str, ...]) -> dict[str, Any]:
    """Return the inputs of the net for rows of any widths."""
    flat = {name: np.concatenate([each[name].reshape(-1) for each in texts]).astype(np.int32) for name in inputs}
    widths = np.array([[each[names.INPUT_IDS].shape[-1]] for each in texts], np.int32)
    return flat | {names.ITEM_SHAPE: widths}
