"""Rules about queues, batches, instances and threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tritonclient.grpc import model_config_pb2

from hfx import names
from hfx.repository.rules.files import backend_of
from hfx.repository.subject import DEFAULT, ConfigFile, Problem, Subject, View


def preferred_batch_size(subject: Subject) -> Iterator[Problem]:
    """HFX501."""
    for _, _, config in subject.parsed():
        if config.message.dynamic_batching.preferred_batch_size:
            yield Problem(
                config.path,
                config.line("preferred_batch_size"),
                "preferred_batch_size lets smaller batches wait.",
                "Remove it; bound the wait by max_queue_delay_microseconds.",
            )


def unbounded_queue(subject: Subject) -> Iterator[Problem]:
    """HFX502."""
    for _, _, config in subject.parsed():
        policy = config.message.dynamic_batching.default_queue_policy
        bounded = policy.max_queue_size and policy.default_timeout_microseconds
        if config.message.HasField("dynamic_batching") and not bounded:
            yield Problem(
                config.path,
                config.line("dynamic_batching"),
                "the queue lacks max_queue_size or default_timeout_microseconds: overload shows as endless waiting.",
                "Set both in default_queue_policy, so that a server under overload says so.",
            )


def batching_without_batches(subject: Subject) -> Iterator[Problem]:
    """HFX503."""
    for _, _, config in subject.parsed():
        if config.message.HasField("dynamic_batching") and config.message.max_batch_size == 0:
            yield Problem(
                config.path,
                config.line("dynamic_batching"),
                "dynamic_batching does nothing while max_batch_size is 0.",
                "Set max_batch_size, or remove dynamic_batching.",
            )


def gpu_in_cpu_config(subject: Subject) -> Iterator[Problem]:
    """HFX504."""
    for model, variant, config in subject.parsed():
        entry = subject.entry_of(model)
        gpu_only = entry is not None and entry.manifest is not None and entry.manifest.precision.cpu is None
        if variant in (DEFAULT, "cpu") and not gpu_only and has_gpu(config):
            yield Problem(
                config.path,
                config.line("KIND_GPU"),
                "KIND_GPU does not load without a GPU, and this is the configuration for CPUs.",
                "Use KIND_CPU here, and KIND_GPU in configs/gpu.pbtxt (--model-config-name=gpu).",
            )


def has_gpu(config: ConfigFile) -> bool:
    """Whether an instance of the model needs a GPU."""
    return any(_kind(group) == "KIND_GPU" for group in config.message.instance_group)


def _kind(group: Any) -> str:
    return str(model_config_pb2.ModelInstanceGroup.Kind.Name(group.kind))


def oversubscribed(subject: Subject) -> Iterator[Problem]:
    """HFX505."""
    for view in subject.views:
        for name, members in _lines(view).items():
            parts = {member: _threads(view[member], subject.cores) for member in members if member in view}
            busy = {member: threads for member, threads in parts.items() if threads}
            if sum(busy.values()) > subject.cores:
                largest = view[max(busy, key=lambda member: busy[member])]
                yield Problem(
                    largest.path,
                    largest.line("intra_op_thread_count") or largest.line("instance_group"),
                    f"{name!r} runs {sum(busy.values())} threads on {subject.cores} cores "
                    f"({', '.join(f'{member}: {threads}' for member, threads in sorted(busy.items()))}).",
                    "Lower the instance count or intra_op_thread_count: instances x threads should not exceed cores.",
                )


def cached_generator(subject: Subject) -> Iterator[Problem]:
    """HFX506."""
    for _, _, config in subject.parsed():
        samples = any(tensor.name == names.DO_SAMPLE for tensor in config.message.input)
        if samples and config.message.response_cache.enable:
            yield Problem(
                config.path,
                config.line("response_cache"),
                "the response cache would give everybody the same sample, as the request's tensors are its key.",
                "Remove response_cache; cache in front of the server what has a seed or is not sampled.",
            )


def _lines(view: View) -> dict[str, set[str]]:
    """What works on one request: an ensemble's members, or a model that is no member."""
    ensembles = {
        name: {step.model_name for step in config.message.ensemble_scheduling.step}
        for name, config in view.items()
        if config.message.platform == "ensemble"
    }
    members = {member for found in ensembles.values() for member in found}
    return ensembles | {name: {name} for name in view if name not in members and name not in ensembles}


def _threads(config: ConfigFile, cores: int) -> int:
    """Compute threads on CPUs: instances x intra-op threads; ONNX Runtime takes every core when nothing is said."""
    message = config.message
    groups = [group for group in message.instance_group if _kind(group) != "KIND_GPU"]
    instances = sum(max(group.count, 1) for group in groups) if message.instance_group else 1
    text = next((v.string_value for k, v in message.parameters.items() if k == "intra_op_thread_count"), "")
    if re.fullmatch(r"[1-9][0-9]{0,5}", text, re.ASCII):
        return instances * int(text)
    return instances * cores if backend_of(config) == "onnxruntime" else 0
