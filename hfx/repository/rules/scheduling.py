"""Rules about queues, batches, instances and threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hfx import names
from hfx.releases import QUEUE_POLICY_FIXED
from hfx.repository.model_config import pb
from hfx.repository.rules.files import backend_of
from hfx.repository.subject import DEFAULT, ConfigFile, Problem, Subject, View, rule

ADMISSION = ("max_queue_size", "max_queue_seconds")  # parameters of a tokenizing step


@rule("HFX501", "warning", "Remove it; bound the wait by max_queue_delay_microseconds.")
def preferred_batch_size(subject: Subject) -> Iterator[Problem]:
    """preferred_batch_size is set."""
    for _, _, config in subject.parsed():
        if config.message.dynamic_batching.preferred_batch_size:
            yield config.problem("preferred_batch_size lets smaller batches wait.", "preferred_batch_size")


@rule(
    "HFX502", "warning", f"Leave default_queue_policy empty before {QUEUE_POLICY_FIXED}; bound the queue before Triton."
)
def queue_policy(subject: Subject) -> Iterator[Problem]:
    """A queue policy that makes requests wait, or a queue without bounds."""
    admitted = {name for view in subject.views for name in _behind_admission(view)}
    for model, _, config in subject.parsed():
        if not config.message.HasField("dynamic_batching"):
            continue
        if subject.release.tag < QUEUE_POLICY_FIXED:
            yield from _stalling(config)
        elif model.name not in admitted:
            yield from _unbounded(config)


def _stalling(config: ConfigFile) -> Iterator[Problem]:
    batching = config.message.dynamic_batching
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        fields = ("max_queue_size", "default_timeout_microseconds", "allow_timeout_override")
        if field := next((field for field in fields if getattr(policy, field)), None):
            message = f"with {field} the batcher prepares no batch ahead: requests wait for 0.5 s now and then."
            yield config.problem(message, "dynamic_batching", field)


def _unbounded(config: ConfigFile) -> Iterator[Problem]:
    policy = config.message.dynamic_batching.default_queue_policy
    if not (policy.max_queue_size and policy.default_timeout_microseconds):
        missing = "the queue lacks max_queue_size or default_timeout_microseconds"
        fix = "Set both in default_queue_policy, so that a server under overload says so."
        yield config.problem(f"{missing}: overload shows as endless waiting.", "dynamic_batching", fix=fix)


@rule("HFX503", "warning", "Set max_batch_size, or remove dynamic_batching.")
def batching_without_batches(subject: Subject) -> Iterator[Problem]:
    """Dynamic batching without batches."""
    for _, _, config in subject.parsed():
        if config.message.HasField("dynamic_batching") and config.message.max_batch_size == 0:
            yield config.problem("dynamic_batching does nothing while max_batch_size is 0.", "dynamic_batching")


@rule("HFX504", "error", "Use KIND_CPU here, and KIND_GPU in configs/gpu.pbtxt (--model-config-name=gpu).")
def gpu_in_cpu_config(subject: Subject) -> Iterator[Problem]:
    """KIND_GPU in the configuration for CPUs."""
    for model, variant, config in subject.parsed():
        manifest = subject.manifest_of(model)
        gpu_only = manifest is not None and manifest.precision.cpu is None
        if variant in (DEFAULT, "cpu") and not gpu_only and has_gpu(config):
            message = "KIND_GPU does not load without a GPU, and this is the configuration for CPUs."
            yield config.problem(message, "KIND_GPU")


def has_gpu(config: ConfigFile) -> bool:
    """Return whether an instance of the model needs a GPU."""
    return any(map(_on_gpu, config.message.instance_group))


def _on_gpu(group: Any) -> bool:
    return bool(group.kind == pb.ModelInstanceGroup.KIND_GPU)


@rule(
    "HFX505",
    "warning",
    "Lower the instance count or intra_op_thread_count: instances x threads should not exceed cores.",
)
def oversubscribed(subject: Subject) -> Iterator[Problem]:
    """More threads than cores."""
    for view in subject.views:
        for name, members in _members(view).items():
            parts = {member: _threads(view[member], subject.cores) for member in members if member in view}
            busy = {member: threads for member, threads in sorted(parts.items()) if threads}
            if sum(busy.values()) > subject.cores:
                largest = view[max(busy, key=lambda member: busy[member])]
                shares = ", ".join(f"{member}: {threads}" for member, threads in busy.items())
                message = f"{name!r} runs {sum(busy.values())} threads on {subject.cores} cores ({shares})."
                line = largest.line("intra_op_thread_count") or largest.line("instance_group")
                yield Problem(largest.path, message, line)


@rule("HFX506", "error", "Remove response_cache; cache in front of the server what has a seed or is not sampled.")
def cached_generator(subject: Subject) -> Iterator[Problem]:
    """The response cache of a generator."""
    for _, _, config in subject.parsed():
        samples = any(tensor.name == names.DO_SAMPLE for tensor in config.message.input)
        if samples and config.message.response_cache.enable:
            message = "the response cache gives each request the same sample, as the request's tensors are its key."
            yield config.problem(message, "response_cache")


def _behind_admission(view: View) -> Iterator[str]:
    """Yield the members of ensembles that refuse requests with too long a wait (python_backends/admission.py)."""
    for members in _members(view).values():
        parameters = [view[name].message.parameters for name in members if name in view]
        bounds = [each[key].string_value for each in parameters for key in ADMISSION if key in each]
        if set(bounds) - {"", "0"}:
            yield from members


def _members(view: View) -> dict[str, set[str]]:
    """Return the models that compute one request: the members of each ensemble, or a single model that is no member."""
    ensembles = {
        name: {step.model_name for step in config.message.ensemble_scheduling.step}
        for name, config in view.items()
        if config.message.platform == "ensemble"
    }
    members = {member for steps in ensembles.values() for member in steps}
    return ensembles | {name: {name} for name in view if name not in members and name not in ensembles}


def _threads(config: ConfigFile, cores: int) -> int:
    """Return the number of compute threads on CPUs: instances x intra-op threads.

    Without a setting, ONNX Runtime uses every core.
    """
    message = config.message
    groups = [group for group in message.instance_group if not _on_gpu(group)]
    instances = sum(max(group.count, 1) for group in groups) if message.instance_group else 1
    text = next((v.string_value for k, v in message.parameters.items() if k == "intra_op_thread_count"), "")
    if re.fullmatch(r"[1-9][0-9]{0,5}", text, re.ASCII):
        return instances * int(text)
    return instances * cores if backend_of(config) == "onnxruntime" else 0
