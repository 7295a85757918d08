"""Turns requests of any shapes into runs of the graph, and back: ragged inputs, batch inputs, groups, chunks.

The contract is that of NVIDIA's C++ backend: inputs with allow_ragged_batch reach the graph flattened, and batch_input
tensors give the graph the shapes. This backend adds a rule: only rows of one shape share a run, or rows of similar
widths if padding costs nearly nothing, so that no answer depends on the lengths of other rows. The module depends on
neither Triton nor a runtime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..large_requests import Cancelled
from .config import LABEL_MASK, Config, ConfigError, integer
from .sessions import DTYPES, Feed, Outputs, Session, Tensor

Sources = Sequence[NDArray[Any]]


class InvalidShape(ValueError):
    """A client's tensor has a shape that the model can't run; the text names the tensor and says what fits."""


def _counts(sources: Sources, batched: bool) -> NDArray[Any]:
    return np.array([source.size for source in sources])


def _item_shapes(sources: Sources, batched: bool) -> NDArray[Any]:
    if not batched:
        return np.array([source.shape for source in sources])
    return np.array([source.shape[1:] for source in sources for _ in range(len(source))])


# The function by which each kind makes its tensor from the requests' source arrays and from whether the model batches.
KINDS: dict[str, Callable[[Sources, bool], NDArray[Any]]] = {
    "BATCH_ELEMENT_COUNT": _counts,
    "BATCH_ACCUMULATED_ELEMENT_COUNT": lambda *source: np.cumsum(_counts(*source)),
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO": lambda *source: np.cumsum([0, *_counts(*source)]),
    # Only the shape has a meaning; the proto does not specify the data.
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE": lambda *source: np.zeros(_counts(*source).max()),
    "BATCH_ITEM_SHAPE": _item_shapes,
    "BATCH_ITEM_SHAPE_FLATTEN": lambda *source: _item_shapes(*source).reshape(-1),
}

# Kinds that have the same meaning for a part of a request's rows.
PER_ROW = {"BATCH_ITEM_SHAPE", "BATCH_ITEM_SHAPE_FLATTEN"}


@dataclass(frozen=True)
class BatchInput:
    """One batch_input entry: what `kind` computes from the input `source`, passed to the graph as each of `targets`."""

    kind: str
    targets: tuple[str, ...]
    dtype: Any
    source: str

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> BatchInput:
        """Read an entry of the configuration. Raises ConfigError."""
        kind, sources, data_type = entry.get("kind", "BATCH_ELEMENT_COUNT"), entry["source_input"], entry["data_type"]
        if kind not in KINDS:
            raise ConfigError(f"batch_input kind {kind} is unknown; {', '.join(KINDS)} can be used")
        if len(sources) != 1:
            raise ConfigError(f"batch_input {kind} has {len(sources)} source inputs, not one")
        if data_type not in ("TYPE_INT32", "TYPE_FP32"):
            raise ConfigError(f"batch_input {kind} has the type {data_type}; TYPE_INT32 and TYPE_FP32 can be used")
        return cls(kind, tuple(entry["target_name"]), DTYPES[data_type], sources[0])

    def make(self, sources: Sources, batched: bool) -> NDArray[Any]:
        """Return the tensor for the requests' arrays of `source`, in order."""
        return KINDS[self.kind](sources, batched).astype(self.dtype)


# A run has one of these numbers of rows, as in hfx/native/backend/runs.cpp: each new shape costs a runtime some
# milliseconds once. Powers of two alone would be too few: they cost a seventh of the throughput.
RUN_ROWS = (64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
# The most elements of an input in a run, unless one row, or one sequence of a row with several, has more. The
# activations between layers then stay in the caches. 8,192 tokens in one run take 1.5 times as long as in runs of 1,024
# (int8, distilbert-base, 2 MB of L2 a core; fp32 1.09 times). 1,000 sequences of 20 tokens in one run took 0.8 GB.
MAX_ELEMENTS = 1024
# The same of a run for some sequences of a row that is cut. Requests that are not large wait for one such run at most.
PART_ELEMENTS = 512
# If padding is skipped, rows share a run if their widths differ by at most this factor, or if the run has at most
# FEW_ELEMENTS, padding included. Norms are still computed for padding, and products of a few tokens cost nearly as much
# as products of more tokens.
NEAR = 2
FEW_ELEMENTS = 256


@dataclass(frozen=True)
class Request:
    """The tensors of one request by name (rows first if the model batches), and the outputs that it wants.

    `goes_on` is called between two runs with the elements of the first one, and says whether the request still counts.
    """

    feed: Feed
    wanted: tuple[str, ...]
    goes_on: Callable[[int], bool] = lambda _: True


@dataclass(frozen=True)
class Layout:
    """The inputs and outputs in a configuration.

    `max_width`, the parameter max_width, is the largest last dimension of a ragged input; 0 means any. `by_token` has
    the outputs with an entry for each element of a ragged input's last dimension, and the axis of these entries. If
    there is a `label_mask`, only rows with equally many labels share a run.
    """

    inputs: tuple[str, ...]
    ragged: frozenset[str]
    outputs: tuple[str, ...]
    by_token: Mapping[str, int]
    batch_inputs: tuple[BatchInput, ...]
    batched: bool
    max_width: int = 0
    label_mask: int = 0

    @property
    def has_rows(self) -> bool:
        """Whether a run may mix rows of any requests: there is a ragged input, and no batch input counts by request."""
        return bool(self.ragged) and all(each.kind in PER_ROW for each in self.batch_inputs)

    def elements(self, feed: Feed) -> int:
        """Return the number of elements of a request's largest ragged input; 0 if it can't be run in parts."""
        return max((feed[name].size for name in self.ragged & feed.keys()), default=0) if self.has_rows else 0

    @classmethod
    def read(cls, config: Config) -> Layout:
        """Read the layout of a configuration. Raises ConfigError."""
        if config.get("batch_output"):
            raise ConfigError("batch_output is not supported: outputs must have one entry a row")
        inputs, outputs = config["input"], config["output"]
        ragged = {each["name"]: _dims(each) for each in inputs if each.get("allow_ragged_batch")}
        axis = max(map(len, ragged.values()), default=0)
        return cls(
            inputs=tuple(each["name"] for each in inputs),
            ragged=frozenset(ragged),
            outputs=tuple(each["name"] for each in outputs),
            by_token={each["name"]: axis for each in outputs if axis and -1 in _dims(each)[axis - 1 : axis]},
            batch_inputs=tuple(BatchInput.read(each) for each in config.get("batch_input") or []),
            batched=int(config.get("max_batch_size", 0)) > 0,
            max_width=integer(config, "max_width", 0),
            label_mask=integer(config, LABEL_MASK, 0),
        )


def _dims(tensor: Mapping[str, Any]) -> list[int]:
    """`dims` of an input or output; protobuf writes them to JSON as strings, Triton as numbers."""
    return [int(size) for size in tensor.get("dims", ())]


def check(layout: Layout, config: Config, session: Session) -> None:
    """Raise ConfigError if the configuration and the graph differ in names, types, or the rank of ragged inputs."""
    inputs = {tensor.name: tensor for tensor in session.inputs}
    outputs = {tensor.name: tensor for tensor in session.outputs}
    for each in config["input"]:
        _agree(each, inputs, "input")
        if each["name"] in layout.ragged and len(inputs[each["name"]].shape) != 1:
            raise ConfigError(
                f"input {each['name']} has allow_ragged_batch, so the graph must take it with one dimension"
            )
    for each in config["output"]:
        _agree(each, outputs, "output")
    made = {target for batch_input in layout.batch_inputs for target in batch_input.targets}
    absent = made - inputs.keys()
    if absent:
        raise ConfigError(f"batch_input makes {', '.join(sorted(absent))}, which the graph does not take")
    unfed = inputs.keys() - made - set(layout.inputs)
    if unfed:
        raise ConfigError(f"the graph takes {', '.join(sorted(unfed))}, which the configuration does not name")


def _agree(declared: Config, tensors: dict[str, Tensor], what: str) -> None:
    name, data_type = declared["name"], declared["data_type"]
    if name not in tensors:
        raise ConfigError(f"the graph has no {what} {name}; it has {', '.join(tensors)}")
    if data_type not in DTYPES or tensors[name].dtype != DTYPES[data_type]:
        raise ConfigError(f"{what} {name} is {data_type} in the configuration but {tensors[name].dtype} in the graph")


def answer(session: Session, layout: Layout, requests: Sequence[Request]) -> list[Outputs | Exception]:
    """Return the outputs of each request, or the error for it, in order.

    A request's answer has the same bytes whatever it is batched with. If a run fails, its requests are run one by one,
    so that only the requests that can't be run fail.
    """
    answers: list[Outputs | Exception] = [_shape_error(layout, request.feed) or {} for request in requests]
    runnable = [at for at, refusal in enumerate(answers) if not isinstance(refusal, InvalidShape)]
    for members in _groups(session, layout, requests, runnable):
        group = [requests[member] for member in members]
        for member, outputs in zip(members, _answer_group(session, layout, group), strict=True):
            answers[member] = outputs
    return answers


def _shape_error(layout: Layout, feed: Feed) -> InvalidShape | None:
    """Return the error for a request whose ragged inputs can't be run; None if they can."""
    for name in layout.ragged & feed.keys() if layout.max_width else ():
        shape = feed[name].shape
        if 0 in shape or shape[-1] > layout.max_width:
            return InvalidShape(
                f"{name} has the shape {[*shape]}; the model takes 1 to {layout.max_width} tokens a row"
            )
    return None


def _groups(session: Session, layout: Layout, requests: Sequence[Request], positions: Sequence[int]) -> list[list[int]]:
    """Group `positions` of requests that may share a run: equal outputs, equal inputs, equal shapes of rows.

    If the session skips padding, widths need only be similar.
    """
    if not layout.batched:
        return [[at] for at in positions]
    mixes = session.skips_padding and layout.has_rows
    groups: dict[object, list[int]] = {}
    for at in positions:
        request = requests[at]
        shapes = {name: array.shape[1:] for name, array in request.feed.items()}
        if mixes and len({shapes.get(name) for name in layout.ragged}) == 1:  # a row has one width in all ragged inputs
            shapes |= {name: shapes[name][:-1] for name in layout.ragged}
        groups.setdefault((request.wanted, _labels(layout, request.feed), *shapes.items()), []).append(at)
    if not mixes:
        return list(groups.values())
    return [run for members in groups.values() for run in _of_near_widths(layout, requests, members)]


def _labels(layout: Layout, feed: Feed) -> int:
    """Return the number of labels of each row; 0 if the model reads none."""
    return int((feed["attention_mask"] == layout.label_mask).sum(-1).max(initial=0)) if layout.label_mask else 0


def _of_near_widths(layout: Layout, requests: Sequence[Request], members: Sequence[int]) -> Iterator[list[int]]:
    """Divide `members` into runs of similar widths, each of at most MAX_ELEMENTS or of one request."""
    shapes = {at: _shape(layout, requests[at].feed) for at in members}
    run: list[int] = []
    rows = 0
    for at in sorted(members, key=lambda at: shapes[at][-1], reverse=True):
        rows += shapes[at][0]
        if run:
            widest, width = shapes[run[0]], shapes[at][-1]
            elements = rows * math.prod(widest[1:])
            near = widest[-1] <= NEAR * width or elements <= FEW_ELEMENTS
            if not near or elements > MAX_ELEMENTS:
                yield run
                run, rows = [], shapes[at][0]
        run.append(at)
    yield run


def _shape(layout: Layout, feed: Feed) -> tuple[int, ...]:
    """Return the shape of the ragged inputs; the largest one if they differ."""
    return max(feed[name].shape for name in layout.ragged)


def _elements(layout: Layout, feeds: Sequence[Feed]) -> int:
    """Return how many elements, padding included, a ragged input has in one run of `feeds`."""
    shapes = [_shape(layout, feed) for feed in feeds]
    return sum(shape[0] for shape in shapes) * max(math.prod(shape[1:]) for shape in shapes)


def _answer_group(session: Session, layout: Layout, group: Sequence[Request]) -> list[Outputs | Exception]:
    try:
        return [*_run(session, layout, group)]
    except Cancelled as gone:
        return [gone] * len(group)
    except Exception as error:  # a runtime's own exception types differ
        if len(group) == 1:
            return [error]
        return [_answer_group(session, layout, [request])[0] for request in group]


def _run(session: Session, layout: Layout, group: Sequence[Request]) -> list[Outputs]:
    wanted, feeds = group[0].wanted, [request.feed for request in group]
    if not layout.batched:
        return [session.run(_feed(layout, feeds[:1]), wanted)]
    counts = [len(next(iter(feed.values()))) for feed in feeds]
    runs, elements = list[Outputs](), 0
    for parts, rows in _feeds(session, layout, feeds, sum(counts)):
        made: list[Outputs] = []
        for part in parts:
            if (runs or made) and not any(request.goes_on(elements) for request in group):
                raise Cancelled
            made.append(_checked(session.run(part, wanted), rows))
            elements = layout.elements(part)
        runs.append(_concatenated(made, 1))
    whole = _concatenated(runs, 0)
    return [_without_padding(layout, *each) for each in zip(feeds, _split(whole, counts), strict=True)]


def _concatenated(runs: Sequence[Outputs], axis: int) -> Outputs:
    return runs[0] if len(runs) == 1 else {name: np.concatenate([run[name] for run in runs], axis) for name in runs[0]}


def _without_padding(layout: Layout, feed: Feed, outputs: Outputs) -> Outputs:
    """Return the outputs of one request without entries for padding, which wider requests of its run cause."""
    return {
        name: np.ascontiguousarray(array[(*[slice(None)] * layout.by_token[name], slice(_shape(layout, feed)[-1]))])
        if name in layout.by_token
        else array
        for name, array in outputs.items()
    }


def _feeds(session: Session, layout: Layout, feeds: Sequence[Feed], rows: int) -> Iterator[tuple[list[Feed], int]]:
    """Yield the feeds that a group needs, with the number of rows of each.

    The feeds of one list have different sequences of the same row.
    """
    # Counts by request would change if a request were cut.
    if not layout.has_rows or (session.skips_padding and _elements(layout, feeds) <= MAX_ELEMENTS):
        yield [_feed(layout, feeds)], rows
        return
    joined = _joined(feeds)
    if _is_cut(layout, joined):
        for row in range(rows):
            yield [_feed(layout, [part]) for part in _sequences(layout, joined, row)], 1
        return
    start = 0
    widest = max(joined[name][0].size for name in layout.ragged)
    for size in _sizes(rows, widest):
        part = joined if size == rows else {name: array[start : start + size] for name, array in joined.items()}
        yield [_feed(layout, [part])], size
        start += size


def _is_cut(layout: Layout, joined: Feed) -> bool:
    """Whether a row has several sequences, [rows, sequences, width], and too many elements for one run."""
    arrays = [joined[name] for name in joined.keys() & layout.ragged]
    known = joined.keys() <= layout.ragged | {"label_vectors"}
    return known and all(each.ndim == 3 and each[0].size > MAX_ELEMENTS for each in arrays)


def _sequences(layout: Layout, joined: Feed, row: int) -> Iterator[Feed]:
    """Yield the sequences of a row in parts, each with the whole of its other inputs."""
    _, sequences, width = next(joined[name] for name in layout.ragged).shape
    start = 0
    for size in _sizes(sequences, width, PART_ELEMENTS):
        own = {name: array[row : row + 1] for name, array in joined.items()}
        yield own | {name: own[name][:, start : start + size] for name in layout.ragged}
        start += size


def _sizes(rows: int, elements: int, most_elements: int = MAX_ELEMENTS) -> Iterator[int]:
    """Yield the number of rows of each run, largest first: `rows` in all, each of so many `elements`."""
    most = max(1, most_elements // max(1, elements))
    while rows:
        size = next(size for size in RUN_ROWS if size <= min(rows, most))
        yield size
        rows -= size


def _feed(layout: Layout, feeds: Sequence[Feed]) -> Feed:
    flat = [
        {name: array.reshape(-1) if name in layout.ragged else array for name, array in each.items()} for each in feeds
    ]
    feed = {name: np.ascontiguousarray(array) for name, array in _joined(flat).items()}
    for batch_input in layout.batch_inputs:
        tensor = batch_input.make([each[batch_input.source] for each in feeds], layout.batched)
        for target in batch_input.targets:
            feed[target] = tensor
    return feed


def _joined(feeds: Sequence[Feed]) -> Feed:
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _checked(outputs: Outputs, rows: int) -> Outputs:
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise RuntimeError(f"output {name} has the shape {list(array.shape)} for a batch of {rows} rows")
    return outputs


def _split(whole: Outputs, counts: Sequence[int]) -> Iterator[Outputs]:
    start = 0
    for count in counts:
        yield {name: array[start : start + count] for name, array in whole.items()}
        start += count
