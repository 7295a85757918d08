"""Rules about ensembles: what flows along the steps, as triton-inference-server/core checks it when it loads one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import model_config_pb2

from hfx.repository.subject import ConfigFile, Problem, Subject, View


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor of the ensemble meeting a member's input or output; `end` is the member's tensor, if it has it."""

    ensemble: ConfigFile
    member: ConfigFile
    kind: str
    key: str
    value: str
    end: Any

    @property
    def line(self) -> int | None:
        """Where the ensemble maps it."""
        return self.ensemble.line("step", self.member.message.name, f"{self.kind}_map", self.key)


def _ensembles(subject: Subject) -> Iterator[tuple[View, ConfigFile]]:
    for view in subject.views:
        for config in view.values():
            if config.message.platform == "ensemble":
                yield view, config


def _steps(subject: Subject) -> Iterator[tuple[ConfigFile, Any, ConfigFile | None]]:
    for view, config in _ensembles(subject):
        for step in config.message.ensemble_scheduling.step:
            yield config, step, view.get(step.model_name)


def _members(subject: Subject) -> Iterator[tuple[ConfigFile, ConfigFile]]:
    for config, _, member in _steps(subject):
        if member is not None:
            yield config, member


def _links(config: ConfigFile, view: View) -> Iterator[Link]:
    for step in config.message.ensemble_scheduling.step:
        member = view.get(step.model_name)
        if member is None:
            continue
        for kind, mapping in (("input", step.input_map), ("output", step.output_map)):
            tensors = {tensor.name: tensor for tensor in getattr(member.message, kind)}
            for key, value in sorted(mapping.items()):
                yield Link(config, member, kind, key, value, tensors.get(key))


def _sources(config: ConfigFile) -> set[str]:
    produced = {value for step in config.message.ensemble_scheduling.step for value in step.output_map.values()}
    return {tensor.name for tensor in config.message.input} | produced


def unknown_model(subject: Subject) -> Iterator[Problem]:
    """HFX401."""
    for config, step, _ in _steps(subject):
        if step.model_name not in subject.models:
            yield Problem(
                config.path,
                config.line("step", step.model_name),
                f"a step runs {step.model_name!r}, which is not in the repository.",
                "Add the model, or correct the step.",
            )


def unknown_tensor(subject: Subject) -> Iterator[Problem]:
    """HFX402."""
    for view, config in _ensembles(subject):
        for link in _links(config, view):
            if link.end is None:
                yield Problem(
                    config.path,
                    link.line,
                    f"{link.kind}_map names {link.key!r}, which {link.member.message.name!r} doesn't have.",
                    "The key is the member's tensor, the value the ensemble's: correct one of them.",
                )


def unmapped_input(subject: Subject) -> Iterator[Problem]:
    """HFX403."""
    for config, step, member in _steps(subject):
        for tensor in member.message.input if member else ():
            if not tensor.optional and tensor.name not in step.input_map:
                yield Problem(
                    config.path,
                    config.line("step", step.model_name),
                    f"the step {step.model_name!r} doesn't map its required input {tensor.name!r}.",
                    "Map it, or make it optional in the member.",
                )


def never_produced(subject: Subject) -> Iterator[Problem]:
    """HFX404."""
    for _, config in _ensembles(subject):
        sources = _sources(config)
        for step in config.message.ensemble_scheduling.step:
            for value in sorted(set(step.input_map.values()) - sources):
                yield Problem(
                    config.path,
                    config.line("step", step.model_name, value),
                    f"the step {step.model_name!r} reads {value!r}, which nothing produces.",
                    "Let a step before it produce the tensor, or declare it as an input.",
                )


def output_without_source(subject: Subject) -> Iterator[Problem]:
    """HFX405."""
    for _, config in _ensembles(subject):
        for tensor in config.message.output:
            if tensor.name not in _sources(config):
                yield Problem(
                    config.path,
                    config.line("output", tensor.name),
                    f"no step produces the output {tensor.name!r}.",
                    "Map a step's output to it, or remove it.",
                )


def produced_twice(subject: Subject) -> Iterator[Problem]:
    """HFX406."""
    for _, config in _ensembles(subject):
        names = [tensor.name for tensor in config.message.input]
        names += [value for step in config.message.ensemble_scheduling.step for value in step.output_map.values()]
        for name in (name for name, count in Counter(names).items() if count > 1):
            yield Problem(
                config.path,
                config.line("step", name),
                f"{name!r} is produced twice.",
                "Give each tensor a name of its own.",
            )


def data_types(subject: Subject) -> Iterator[Problem]:
    """HFX407."""
    for config, first, second in _meetings(subject):
        if first.data_type != second.data_type:
            yield Problem(
                config.path,
                second.line,
                f"{second.value!r} is {_type_name(first.data_type)} in {first.place} and "
                f"{_type_name(second.data_type)} in {second.place}.",
                "Declare the same data_type on both ends.",
            )


def dimensions(subject: Subject) -> Iterator[Problem]:
    """HFX408."""
    for config, first, second in _meetings(subject):
        if not _agree(first.dims, second.dims):
            yield Problem(
                config.path,
                second.line,
                f"{second.value!r} has the shape {list(first.dims)} in {first.place} and {list(second.dims)} in "
                f"{second.place}, batch dimension included.",
                "Declare dims that agree; -1 agrees with any size.",
            )


@dataclass(frozen=True, slots=True)
class _End:
    value: str
    place: str
    data_type: int
    dims: tuple[int, ...]
    line: int | None


def _meetings(subject: Subject) -> Iterator[tuple[ConfigFile, _End, _End]]:
    """Each end of an ensemble's tensor with the first end of the same tensor, which is where it comes from."""
    for view, config in _ensembles(subject):
        first: dict[str, _End] = {}
        ends = [*_own_ends(config, "input"), *_member_ends(config, view), *_own_ends(config, "output")]
        for end in ends:
            start = first.setdefault(end.value, end)
            if start is not end:
                yield config, start, end


def _own_ends(config: ConfigFile, kind: str) -> Iterator[_End]:
    for tensor in getattr(config.message, kind):
        shape = _shape(config, tensor)
        yield _End(tensor.name, f"the ensemble's {kind}", tensor.data_type, shape, config.line(kind, tensor.name))


def _member_ends(config: ConfigFile, view: View) -> Iterator[_End]:
    links = [link for link in _links(config, view) if link.end is not None]
    for link in sorted(links, key=lambda link: link.kind == "input"):  # where a tensor comes from stands first
        place = f"{link.member.message.name}'s {link.kind} {link.key!r}"
        yield _End(link.value, place, link.end.data_type, _shape(link.member, link.end), link.line)


def _shape(config: ConfigFile, tensor: Any) -> tuple[int, ...]:
    batch = (-1,) if config.message.max_batch_size > 0 else ()
    return (*batch, *tensor.dims)


def _agree(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """CompareDimsWithWildcard of triton-inference-server/core, src/model_config_utils.cc."""
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))


def _type_name(number: int) -> str:
    return str(model_config_pb2.DataType.Name(number))


def batch_size(subject: Subject) -> Iterator[Problem]:
    """HFX409."""
    for config, member in _members(subject):
        wanted, allowed = config.message.max_batch_size, member.message.max_batch_size
        if allowed < wanted:
            yield Problem(
                config.path,
                config.line("max_batch_size"),
                f"allows batches of {wanted}, but its member {member.message.name!r} of {allowed}.",
                "Raise the member's max_batch_size, or lower the ensemble's.",
            )


def decoupled_member(subject: Subject) -> Iterator[Problem]:
    """HFX410."""
    for config, member in _members(subject):
        if member.message.model_transaction_policy.decoupled:
            yield Problem(
                config.path,
                config.line("step", member.message.name),
                f"its member {member.message.name!r} is decoupled, so every unary request to the ensemble is refused.",
                "Call that model by itself, over a stream, or from a model that relays it.",
            )


def own_instances(subject: Subject) -> Iterator[Problem]:
    """HFX411."""
    for _, config in _ensembles(subject):
        for field in ("instance_group", "model_warmup"):
            if getattr(config.message, field):
                yield Problem(
                    config.path,
                    config.line(field),
                    f"an ensemble has no {field} of its own.",
                    "Set it in the members, and remove it here.",
                )


def no_steps(subject: Subject) -> Iterator[Problem]:
    """HFX412."""
    for _, config in _ensembles(subject):
        if not config.message.ensemble_scheduling.step:
            yield Problem(
                config.path, config.line("platform"), "is an ensemble without steps.", "Add ensemble_scheduling steps."
            )


def optional_into_required(subject: Subject) -> Iterator[Problem]:
    """HFX413."""
    for view, config in _ensembles(subject):
        optional = {tensor.name for tensor in config.message.input if tensor.optional}
        for link in _links(config, view):
            if link.kind == "input" and link.value in optional and link.end is not None and not link.end.optional:
                yield Problem(
                    config.path,
                    link.line,
                    f"the optional input {link.value!r} feeds {link.key!r} of {link.member.message.name!r}, "
                    "which is required.",
                    "Make both optional, or both required.",
                )


def unused(subject: Subject) -> Iterator[Problem]:
    """HFX414."""
    for _, config in _ensembles(subject):
        steps = config.message.ensemble_scheduling.step
        read = {tensor.name for tensor in config.message.output}
        read |= {value for step in steps for value in step.input_map.values()}
        for tensor in config.message.input:
            if tensor.name not in read:
                yield _unused(config, config.line("input", tensor.name), f"the input {tensor.name!r}")
        for step in steps:
            for value in sorted(set(step.output_map.values()) - read):
                yield _unused(config, config.line("step", step.model_name, "output_map", value), repr(value))


def _unused(config: ConfigFile, line: int | None, what: str) -> Problem:
    message = f"no step and no output of the ensemble uses {what}; Triton refuses that."
    return Problem(config.path, line, message, "Remove it, or map it to an input of a step.")
