"""Write the model folders of an encoder: NAME, NAME_tokenize, NAME_net and NAME_postprocess."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfx import names, native
from hfx.exporter.encoder.kinds.kind import Settings
from hfx.exporter.encoder.one_hop import Compiled
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.model_files import copy_files, write_config, write_json, write_tokenizer_json
from hfx.exporter.tokenizer import pad_id, vocab_limit
from hfx.exporter.variants.variant import Net
from hfx.local import Device
from hfx.python_backends import deploy
from hfx.python_backends.admission import Bound
from hfx.python_backends.tasks import TASKS
from hfx.repository import Staging
from hfx.repository.config_pbtxt import EnsembleStep, ModelConfig, TensorSpec, Warmup, WarmupInput
from hfx.tasks.kinds import KIND

LONGEST_WARMUP = 512  # tokens; beyond it, preparing a shape takes little time compared with computing it once
# Suffixes of tensor names in the ensemble: of an optional input that the tokenizing step has filled in, and of an
# output of the net that the last step returns in another form.
SETTING = "_setting"
WHOLE = "_whole"
TRUNCATED = TensorSpec(names.TRUNCATED_TOKENS, "TYPE_INT32", (1,))


def token_inputs(plan: EncoderPlan, inputs: tuple[str, ...]) -> tuple[TensorSpec, ...]:
    """Return the tensors that the tokenizer passes to the net, with the dims [width] or [sequences, width]."""
    dims = (-1,) * plan.kind.item_rank
    vectors = TensorSpec(names.LABEL_VECTORS, "TYPE_FP32", (-1, plan.kind.vectors))
    return tuple(vectors if name == vectors.name else TensorSpec(name, "TYPE_INT32", dims) for name in inputs)


def public_outputs(plan: EncoderPlan) -> tuple[TensorSpec, ...]:
    """Return the outputs of the entry point, with the net's exact dims if there is no last step."""
    if not plan.kind.has_last_step:
        return (*plan.net_outputs, TRUNCATED)
    return (*plan.kind.outputs, TRUNCATED)


def write_ensemble(plan: EncoderPlan, staging: Staging, inputs: tuple[str, ...]) -> None:
    """Write the folder of the entry point NAME."""
    folder = staging.folder(plan.name)
    (folder / "1").mkdir()
    # Triton wants a version folder, and copies by git or object stores drop empty ones.
    (folder / "1" / ".keep").touch()
    kind = plan.kind
    read = {spec.name: spec.name for spec in kind.inputs}
    made = [*inputs, *(spec.name for spec in kind.token_outputs), names.TRUNCATED_TOKENS]
    tokenizing = TASKS[kind.task].tokenizing
    settings = {spec.name: spec.name + SETTING for spec in kind.inputs if spec.optional and spec.name not in tokenizing}
    last = tuple(spec.name for spec in kind.outputs) if kind.has_last_step else ()
    answered = [spec.name for spec in plan.net_outputs]
    made_by_net = {name: name + WHOLE if name in last else name for name in answered}
    steps = [
        EnsembleStep(plan.name + names.TOKENIZE_SUFFIX, read, {name: name for name in made} | settings),
        EnsembleStep(plan.name + names.NET_SUFFIX, {n: n for n in inputs}, made_by_net),
    ]
    if kind.has_last_step:
        reads = made_by_net | {name: settings.get(name, name) for name in kind.postprocess_reads}
        steps.append(EnsembleStep(plan.name + names.POSTPROCESS_SUFFIX, reads, {name: name for name in last}))
    config = ModelConfig(
        name=plan.name,
        max_batch_size=plan.max_batch_size,
        inputs=tuple(replace(spec, ragged=False) for spec in kind.inputs),
        outputs=public_outputs(plan),
        parameters={KIND: str(kind.name)},
        steps=tuple(steps),
    )
    write_config(config, plan.command, folder / "config.pbtxt")


def write_tokenizer(
    plan: EncoderPlan, staging: Staging, inputs: tuple[str, ...], tokenizer: Any, compiled: Compiled
) -> None:
    """Write NAME_tokenize: the tokenizer as transformers set it up, and how its output becomes tensors.

    A compiled tokenizer, if there is one, is written beside it, with the native libraries that read it.
    """
    folder = staging.folder(plan.name + names.TOKENIZE_SUFFIX)
    version = copy_files(folder, deploy.tokenize_files())
    write_tokenizer_json(tokenizer, version / "tokenizer.json")
    if compiled.content:
        (version / names.COMPILED_TOKENIZER).write_bytes(compiled.content)
        for library in native.libraries().values():
            shutil.copyfile(library, version / library.name)
    settings: Settings = {
        "task": str(plan.kind.task),
        "max_length": plan.max_length,
        "widths": list(plan.widths),
        "pad_id": pad_id(plan.checkpoint, tokenizer),
        "pad_type_id": int(tokenizer.pad_token_type_id),
        "truncation_side": tokenizer.truncation_side,
        "inputs": list(inputs),
        "question_first": tokenizer.padding_side == "right",
        "cls_id": tokenizer.cls_token_id,
        "vocab_size": vocab_limit(plan.checkpoint, tokenizer),
        **plan.kind.reader_settings(plan.checkpoint, tokenizer, plan.max_length),
    }
    write_json(version / "settings.json", settings)
    read = tuple(spec for spec in plan.kind.inputs if not spec.optional)
    optional = tuple(spec for spec in plan.kind.inputs if spec.optional)
    given = tuple(
        replace(spec, optional=False) for spec in optional if spec.name not in TASKS[plan.kind.task].tokenizing
    )
    outputs = (*token_inputs(plan, inputs), *plan.kind.token_outputs, TRUNCATED, *given)
    bound = {"max_queue_size": str(Bound.requests), "max_queue_seconds": f"{Bound.seconds:g}"}
    _write_python_config(plan, folder, (*read, *optional), outputs, (_text_warmup(plan, folder, read),), bound)


def _write_python_config(
    plan: EncoderPlan,
    folder: Path,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    warmups: tuple[Warmup, ...] = (),
    parameters: Mapping[str, str] = {},
) -> None:
    config = ModelConfig(
        name=folder.name,
        backend="python",
        max_batch_size=plan.max_batch_size,
        inputs=inputs,
        outputs=outputs,
        instance_kind="KIND_CPU",
        batching=True,
        parameters=parameters,
        warmups=warmups,
    )
    write_config(config, plan.command, folder / "config.pbtxt")


def write_net(plan: EncoderPlan, folder: Path, inputs: tuple[str, ...], nets: Mapping[Device, Net]) -> None:
    """Write the configurations of NAME_net, whose version folder holds the ONNX files of `nets`."""
    config = ModelConfig(
        name=plan.name + names.NET_SUFFIX,
        backend="onnxruntime",
        max_batch_size=plan.max_batch_size,
        inputs=tuple(replace(spec, ragged=spec.data_type == "TYPE_INT32") for spec in token_inputs(plan, inputs)),
        outputs=plan.net_outputs,
        item_shapes={names.ITEM_SHAPE: names.INPUT_IDS},
        batching=True,
        parameters={"max_width": str(plan.widths[-1]), **plan.kind.net_parameters},
        warmups=_width_warmups(plan, inputs),
    )
    (folder / "configs").mkdir(exist_ok=True)
    for device in reversed(plan.built):  # the last one, for CPUs if there is one, is served by default
        configured = nets[device].configured(config, plan.threads)
        write_config(configured, plan.command, folder / "configs" / f"{device}.pbtxt")
        write_config(configured, plan.command, folder / "config.pbtxt")


def write_postprocess(plan: EncoderPlan, staging: Staging, tokenizer: Any) -> None:
    """Write NAME_postprocess, if the task has a last step."""
    kind = plan.kind
    if not kind.has_last_step:
        return
    folder = staging.folder(plan.name + names.POSTPROCESS_SUFFIX)
    version = copy_files(folder, deploy.postprocess_files())
    settings: Settings = {"task": str(kind.task), **kind.last_step_settings(plan.checkpoint.config)}
    if kind.spells_tokens:
        write_tokenizer_json(tokenizer, version / "tokenizer.json")
        settings |= kind.tokenizer_settings(tokenizer, plan.checkpoint)
    write_json(version / "settings.json", settings)
    _write_python_config(plan, folder, _postprocess_inputs(plan), kind.outputs)


def _postprocess_inputs(plan: EncoderPlan) -> tuple[TensorSpec, ...]:
    kind = plan.kind
    known = {spec.name: spec for spec in (*kind.inputs, *kind.token_outputs)}
    known |= {spec.name: spec for spec in token_inputs(plan, (names.INPUT_IDS, names.ATTENTION_MASK))}
    read = (*plan.net_outputs, *(known[name] for name in kind.postprocess_reads))
    # Ragged, so that requests of different shapes can share a batch.
    return tuple(replace(spec, optional=False, ragged=-1 in spec.dims) for spec in read)


def _text_warmup(plan: EncoderPlan, folder: Path, read: tuple[TensorSpec, ...]) -> Warmup:
    """Write an example request to `warmup/`, and return the warm-up that reads it.

    Triton's BYTES values are a 4-byte length and the text.
    """
    (folder / "warmup").mkdir()
    example, inputs = plan.kind.example, {}
    for spec in read:
        value = example[spec.name]
        texts = [value] if isinstance(value, str) else list(value)
        raw = b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in texts)
        (folder / "warmup" / spec.name).write_bytes(raw)
        inputs[spec.name] = WarmupInput(spec.data_type, (len(texts),), spec.name)
    return Warmup("text", inputs)


def _width_warmups(plan: EncoderPlan, inputs: tuple[str, ...]) -> tuple[Warmup, ...]:
    """Return a warm-up for each width up to LONGEST_WARMUP, and for the last one.

    Without them, the first request of each shape would wait until the shape is prepared.
    """
    lead = (1,) * (plan.kind.item_rank - 1)
    one = {name: WarmupInput("TYPE_FP32", (1, plan.kind.vectors)) for name in inputs if name == names.LABEL_VECTORS}
    widths = [width for width in plan.widths if width <= LONGEST_WARMUP or width == plan.widths[-1]]
    return tuple(
        Warmup(f"width {width}", {name: WarmupInput("TYPE_INT32", (*lead, width)) for name in inputs} | one)
        for width in widths
    )
