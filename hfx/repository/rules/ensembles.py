"""Rules about the tensors between the steps of an ensemble, as triton-inference-server/core checks them on loading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hfx.repository.model_config import pb
from hfx.repository.subject import ConfigFile, Problem, Subject, View, rule


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor of the ensemble that a step maps to a member's input or output.

    `end` is the member's tensor, or None if the member lacks it.
    """

    ensemble: ConfigFile
    member: ConfigFile
    kind: str
    key: str
    value: str
    end: Any

    @property
    def place(self) -> tuple[str, ...]:
        """The place of the mapping in the ensemble's configuration, as words for ConfigFile.line."""
        return ("step", self.member.message.name, f"{self.kind}_map", self.key)


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


def _sources(config: ConfigFile) -> list[str]:
    """Return the ensemble's inputs and then the tensors that its steps produce."""
    produced = [value for step in config.message.ensemble_scheduling.step for value in step.output_map.values()]
    return [tensor.name for tensor in config.message.input] + produced


@rule("HFX401", "error", "Add the model, or correct the step.")
def unknown_model(subject: Subject) -> Iterator[Problem]:
    """An ensemble runs an unknown model."""
    for config, step, _ in _steps(subject):
        if step.model_name not in subject.models:
            message = f"a step runs {step.model_name!r}, which is not in the repository."
            yield config.problem(message, "step", step.model_name)


@rule("HFX402", "error", "The key is the member's tensor, the value the ensemble's: correct one of them.")
def unknown_tensor(subject: Subject) -> Iterator[Problem]:
    """An ensemble maps a tensor that the member lacks."""
    for view, config in _ensembles(subject):
        for link in _links(config, view):
            if link.end is None:
                message = f"{link.kind}_map names {link.key!r}, which {link.member.message.name!r} doesn't have."
                yield config.problem(message, *link.place)


@rule("HFX403", "error", "Map it, or make it optional in the member.")
def unmapped_input(subject: Subject) -> Iterator[Problem]:
    """A required input of a step is not mapped."""
    for config, step, member in _steps(subject):
        for tensor in member.message.input if member else ():
            if not tensor.optional and tensor.name not in step.input_map:
                message = f"the step {step.model_name!r} doesn't map its required input {tensor.name!r}."
                yield config.problem(message, "step", step.model_name)


@rule("HFX404", "error", "Let a step before it produce the tensor, or declare it as an input.")
def never_produced(subject: Subject) -> Iterator[Problem]:
    """A step reads a tensor that nothing produces."""
    for config, step, _ in _steps(subject):
        for value in sorted(set(step.input_map.values()).difference(_sources(config))):
            message = f"the step {step.model_name!r} reads {value!r}, which nothing produces."
            yield config.problem(message, "step", step.model_name, value)


@rule("HFX405", "error", "Map a step's output to it, or remove it.")
def output_without_source(subject: Subject) -> Iterator[Problem]:
    """An ensemble's output that no step produces."""
    for _, config in _ensembles(subject):
        for tensor in config.message.output:
            if tensor.name not in _sources(config):
                yield config.problem(f"no step produces the output {tensor.name!r}.", "output", tensor.name)


@rule("HFX406", "error", "Give each tensor a name of its own.")
def produced_twice(subject: Subject) -> Iterator[Problem]:
    """A tensor of an ensemble is produced twice."""
    for _, config in _ensembles(subject):
        for name, count in Counter(_sources(config)).items():
            if count > 1:
                yield config.problem(f"{name!r} is produced twice.", "step", name)


@rule("HFX407", "error", "Declare the same data_type on both ends.")
def data_types(subject: Subject) -> Iterator[Problem]:
    """Data types disagree along an ensemble."""
    for config, first, second in _meetings(subject):
        if first.data_type != second.data_type:
            types = f"{first.data_type} in {first.place} and {second.data_type} in {second.place}"
            yield Problem(config.path, f"{second.value!r} is {types}.", second.line)


@rule("HFX408", "error", "Declare dims that agree; -1 agrees with any size.")
def dimensions(subject: Subject) -> Iterator[Problem]:
    """Dims disagree along an ensemble."""
    for config, first, second in _meetings(subject):
        if not _agree(first.dims, second.dims):
            shapes = f"{list(first.dims)} in {first.place} and {list(second.dims)} in {second.place}"
            message = f"{second.value!r} has the shape {shapes}, batch dimension included."
            yield Problem(config.path, message, second.line)


@dataclass(frozen=True, slots=True)
class _End:
    value: str
    place: str
    data_type: str
    dims: tuple[int, ...]
    line: int | None


def _meetings(subject: Subject) -> Iterator[tuple[ConfigFile, _End, _End]]:
    """Yield each further end of an ensemble's tensor together with its first end, from which the tensor comes."""
    for view, config in _ensembles(subject):
        first: dict[str, _End] = {}
        for end in (*_own_ends(config, "input"), *_member_ends(config, view), *_own_ends(config, "output")):
            start = first.setdefault(end.value, end)
            if start is not end:
                yield config, start, end


def _own_ends(config: ConfigFile, kind: str) -> Iterator[_End]:
    for tensor in getattr(config.message, kind):
        yield _end(config, tensor, tensor.name, f"the ensemble's {kind}", config.line(kind, tensor.name))


def _member_ends(config: ConfigFile, view: View) -> Iterator[_End]:
    links = [link for link in _links(config, view) if link.end is not None]
    for link in sorted(links, key=lambda link: link.kind == "input"):  # outputs first, as tensors come from them
        place = f"{link.member.message.name}'s {link.kind} {link.key!r}"
        yield _end(link.member, link.end, link.value, place, config.line(*link.place))


def _end(owner: ConfigFile, tensor: Any, value: str, place: str, line: int | None) -> _End:
    return _End(value, place, pb.DataType.Name(tensor.data_type), owner.shape(tensor.dims), line)


def _agree(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Compare dims like CompareDimsWithWildcard of triton-inference-server/core, src/model_config_utils.cc."""
    return len(first) == len(second) and all(a == b or -1 in (a, b) for a, b in zip(first, second, strict=True))


@rule("HFX409", "error", "Raise the member's max_batch_size, or lower the ensemble's.")
def batch_size(subject: Subject) -> Iterator[Problem]:
    """Batches that a member of an ensemble can't carry."""
    for config, member in _members(subject):
        rows, allowed = config.message.max_batch_size, member.message.max_batch_size
        if allowed < rows:
            message = f"allows batches of {rows}, but its member {member.message.name!r} of {allowed}."
            yield config.problem(message, "max_batch_size")


@rule("HFX410", "error", "Call that model by itself, over a stream, or from a model that relays it.")
def decoupled_member(subject: Subject) -> Iterator[Problem]:
    """A decoupled member of an ensemble."""
    for config, member in _members(subject):
        if member.message.model_transaction_policy.decoupled:
            name = member.message.name
            message = f"its member {name!r} is decoupled, so every unary request to the ensemble is refused."
            yield config.problem(message, "step", name)


@rule("HFX411", "error", "Set it in the members, and remove it here.")
def own_instances(subject: Subject) -> Iterator[Problem]:
    """An ensemble with instances or warm-up of its own."""
    for _, config in _ensembles(subject):
        for field in ("instance_group", "model_warmup"):
            if getattr(config.message, field):
                yield config.problem(f"an ensemble has no {field} of its own.", field)


@rule("HFX412", "error", "Add ensemble_scheduling steps.")
def no_steps(subject: Subject) -> Iterator[Problem]:
    """An ensemble without steps."""
    for _, config in _ensembles(subject):
        if not config.message.ensemble_scheduling.step:
            yield config.problem("is an ensemble without steps.", "platform")


@rule("HFX413", "warning", "Make both optional, or both required.")
def optional_into_required(subject: Subject) -> Iterator[Problem]:
    """An optional input feeds a required one."""
    for view, config in _ensembles(subject):
        optional = {tensor.name for tensor in config.message.input if tensor.optional}
        for link in _links(config, view):
            if link.kind == "input" and link.value in optional and link.end is not None and not link.end.optional:
                required = f"{link.key!r} of {link.member.message.name!r}, which is required"
                yield config.problem(f"the optional input {link.value!r} feeds {required}.", *link.place)


@rule("HFX414", "error", "Remove it, or map it to an input of a step.")
def unused(subject: Subject) -> Iterator[Problem]:
    """A tensor of an ensemble that nothing uses."""
    message = "no step and no output of the ensemble uses {}; Triton refuses that."
    for _, config in _ensembles(subject):
        steps = config.message.ensemble_scheduling.step
        read = {tensor.name for tensor in config.message.output}
        read |= {value for step in steps for value in step.input_map.values()}
        for tensor in config.message.input:
            if tensor.name not in read:
                yield config.problem(message.format(f"the input {tensor.name!r}"), "input", tensor.name)
        for step in steps:
            for value in sorted(set(step.output_map.values()) - read):
                yield config.problem(message.format(repr(value)), "step", step.model_name, "output_map", value)
