"""The operators for adapters: near float64, and bit equal for a text beside other adapters with any kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hfx.exporter.graph import operators
from hfx.exporter.graph.reference import ACTIVATIONS
from tests.unit.native.guarded import copy_of, guarded
from tests.unit.native.reference import assert_same_bits, random_rows
from tests.unit.native.sessions import open_model, options

HEADER, OFFSET = 16, 5
KINDS = {suffix: kind for kind, suffix in operators.SUFFIXES.items()}
REFUSALS = (errors.InvalidArgument, errors.RuntimeException, errors.Fail)


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


def int8_of(rows: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return `rows` [slots, n, k] in int8, and the scale of each row [slots, n], which is 0 for zeros."""
    scale = np.abs(rows).max(-1, initial=0) / np.float32(127)
    return np.rint(rows / np.where(scale == 0, 1, scale)[..., None]).astype(np.int8), scale


def packed(values: NDArray[np.int8]) -> NDArray[np.float32]:
    """Return the bytes of each slot in the place of floats."""
    flat = values.reshape(len(values), values[0].size)
    return np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).view(np.float32)


@dataclass(frozen=True)
class Case:
    """An operator of `inputs` inputs and its adapters.

    `columns` and `rooms` are the sizes of a LowRank's parts. `ranks` has a rank for each adapter; the adapter's rank in
    a part is at most the part's room.
    """

    operator: str = "LowRank"
    inputs: int = 50
    columns: tuple[int, ...] = (40,)
    rooms: tuple[int, ...] = (8,)
    ranks: tuple[int, ...] = (3, 0, 8)
    opset: int = 21

    @property
    def outputs(self) -> int:
        return sum(self.columns)

    @property
    def linear(self) -> bool:
        return self.operator.removeprefix("Int8").startswith("AdapterLinear")

    @property
    def int8(self) -> bool:
        return self.operator.startswith("Int8")

    @property
    def suffix(self) -> str:
        return (
            self.operator.removeprefix("Int8").removeprefix("AdapterLinear").removeprefix("LowRank").removeprefix("Add")
        )

    @property
    def attributes(self) -> dict[str, Any]:
        if self.linear:
            return {"in_features": self.inputs, "out_features": self.outputs, "offset": OFFSET}
        sizes = {"columns": self.columns, "rank": self.rooms}
        parts = {f"{name}{i}": (*each, 0, 0)[i] for name, each in sizes.items() for i in range(3)}
        return {"in_features": self.inputs, "offset": OFFSET, **parts}

    def forms(self, library: Path) -> tuple[Path | None, ...]:
        """Return `library`, and None for the operator's definition if there is one."""
        return (library,) if self.int8 else (library, None)

    def matrices(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return A [slots, room, inputs] and B [slots, room, columns] of each part, or the weights and biases.

        The pool of an int8 operator has the nearest weights.
        """
        slots = len(self.ranks)
        if self.linear:
            weights = random_rows(slots, self.outputs, self.inputs, seed=2)
            return [(weights, random_rows(slots, self.outputs, seed=3))]
        parts = []
        for i, (columns, room) in enumerate(zip(self.columns, self.rooms, strict=True)):
            inside = (np.arange(room) < np.array(self.ranks)[:, None])[..., None]
            a, b = (random_rows(slots, room, each, seed=2 + i) * inside for each in (self.inputs, columns))
            parts.append((a, b))
        return parts

    def pool(self) -> NDArray[Any]:
        """Return the slots, with numbers of no meaning before and behind the operator's."""
        slots = len(self.ranks)
        numbers = [np.full((slots, OFFSET), 7, np.float32)]
        for (first, second), room in zip(self.matrices(), self.rooms, strict=True):
            if room and not self.linear:
                header = np.full((slots, HEADER), np.nan, np.float32)
                header[:, 0] = np.minimum(self.ranks, room)
                numbers.append(header)
            numbers += self.numbers(first, second)
        pool: NDArray[Any] = np.concatenate([*numbers, np.full((slots, 3), 7, np.float32)], 1)
        return pool

    def numbers(self, first: NDArray[Any], second: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the matrices of a part as the pool has them, [slots, numbers]."""
        slots = len(self.ranks)
        if not self.int8:
            return [each.reshape(slots, -1).astype(np.float32) for each in (first, second)]
        values, scale = int8_of(first)
        if self.linear:
            return [scale, second, packed(values)]
        others, other_scale = int8_of(second)
        return [scale * other_scale, packed(values), packed(others)]

    def multiplied(self) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        """Return the matrices that are multiplied, in float64."""
        return [
            (self.nearest(first), second.astype(np.float64) if self.linear else self.nearest(second))
            for first, second in self.matrices()
        ]

    def nearest(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        if not self.int8:
            return rows.astype(np.float64)
        values, scale = int8_of(rows)
        return values.astype(np.float64) * scale[..., None]

    def model(self, portable: bool = False, padded: bool = False) -> onnx.ModelProto:
        """Return the model, whose pool and adapter are inputs with defaults; with `portable`, it has its definition."""
        floats = ["x"] if self.linear else ["x", "base", *(["residual"] if "Add" in self.operator else [])]
        names = [*floats, "adapter", "pool", *(["last"] if padded else [])]
        types = {name: TensorProto.INT32 if name in ("adapter", "last") else TensorProto.FLOAT for name in names}
        node = helper.make_node(self.operator, names, ["y"], domain="hfx", **self.attributes)
        defaults = [
            numpy_helper.from_array(self.pool(), "pool"),
            numpy_helper.from_array(np.zeros(1, np.int32), "adapter"),
        ]
        inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in types.items()]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        domains = {"": self.opset, "hfx": 1, "com.microsoft": 1}
        return helper.make_model(
            helper.make_graph([node], "one", inputs, outputs, defaults),
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in domains.items()],
            functions=[operators.function(self.operator, self.opset)] if portable else [],
            ir_version=8 if self.opset < 21 else 10,
        )

    def session(self, library: Path | None, threads: int = 1, padded: bool = False) -> onnxruntime.InferenceSession:
        return open_model(self.model(library is None, padded), options(library, threads))

    def fed(self, *shape: int) -> dict[str, NDArray[Any]]:
        """Return random rows, whose adapters take turns."""
        fed: dict[str, NDArray[Any]] = {"x": random_rows(*shape, self.inputs)}
        if not self.linear:
            fed["base"] = random_rows(*shape, self.outputs, seed=8)
        if "Add" in self.operator:
            fed["residual"] = random_rows(*shape, self.outputs, seed=9)
        return fed | {"adapter": (np.arange(shape[0]) % len(self.ranks)).astype(np.int32)}

    def run(self, library: Path | None, fed: dict[str, NDArray[Any]], threads: int = 1) -> Any:
        return self.session(library, threads, "last" in fed).run(None, fed)[0]

    def activated(self, sums: NDArray[Any]) -> NDArray[Any]:
        return ACTIVATIONS[KINDS[self.suffix]](sums) if self.suffix else sums

    def sums(self, fed: dict[str, NDArray[Any]]) -> Any:
        """Return the result before the activation, in float64."""
        x, (rows, *_) = fed["x"].astype(np.float64), fed["x"].shape
        ids, flat = np.broadcast_to(fed["adapter"], rows), x.reshape(rows, -1, self.inputs)
        deltas = []
        for first, second in self.multiplied():
            a, b = first[ids], second[ids]
            product = flat @ a.swapaxes(1, 2)
            deltas.append(product + b[:, None] if self.linear else product @ b)
        y = np.concatenate(deltas, -1).reshape(*x.shape[:-1], self.outputs)
        return y + fed.get("base", np.zeros(1)).astype(np.float64) + fed.get("residual", np.zeros(1))

    def assert_near(self, found: NDArray[Any], fed: dict[str, NDArray[Any]]) -> None:
        """Check that `found` is near the result in float64, for the size of the sums before the activation."""
        sums = self.sums(fed)
        assert found.shape == sums.shape and found.dtype == np.float32
        atol = 4e-6 * max(1, np.abs(sums).max(initial=0))
        np.testing.assert_allclose(found, self.activated(sums), rtol=0, atol=atol)


PARTS = Case(inputs=70, columns=(33, 16, 5), rooms=(4, 0, 16), ranks=(2, 16, 0, 7))
CASES = [
    *(Case(inputs=33, columns=(100,), rooms=(room,), ranks=(room, 1, 0)) for room in (1, 3, 8, 16, 64, 256)),
    Case(inputs=1, columns=(1,), rooms=(1,)),
    Case(inputs=128, columns=(64,)),
    Case(rooms=(0,)),
    PARTS,
    replace(PARTS, operator="LowRankAdd"),
    *(Case(f"LowRank{suffix}") for suffix in KINDS),
    *(Case(f"AdapterLinear{suffix}") for suffix in ("", *KINDS)),
    Case("AdapterLinear", inputs=300, columns=(2,)),
    Case("AdapterLinear", inputs=64, columns=(130,)),
]
CASES += [replace(each, operator="Int8" + each.operator) for each in CASES]
OF_TEXTS = [PARTS, Case("LowRankAdd", inputs=100, columns=(200,), rooms=(16,), ranks=(4, 16, 1, 0))]
OF_TEXTS += [replace(each, operator="Int8" + each.operator) for each in OF_TEXTS]
BY_ROW = [*OF_TEXTS, Case("AdapterLinear"), Case("Int8AdapterLinear")]


def name_of(case: Any) -> str:
    return f"{case.operator} {case.inputs} {case.columns} {case.rooms}" if isinstance(case, Case) else str(case)


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_operator_and_its_definition_are_near_float64(library: Path, any_library: Path, case: Case) -> None:
    session, other = case.session(library), case.session(any_library)
    portable = [] if case.int8 else [case.session(None), replace(case, opset=18).session(None)]
    for shape in ((7,), (1, 1), (3, 13), (5, 40)):
        fed = case.fed(*shape)
        for one_adapter in (False, True):
            fed["adapter"] = fed["adapter"][-1:] if one_adapter else fed["adapter"]
            found = session.run(None, fed)[0]
            case.assert_near(found, fed)
            for each in portable:
                case.assert_near(each.run(None, fed)[0], fed)
            assert_same_bits(found, other.run(None, fed)[0])


@pytest.mark.parametrize("case", BY_ROW, ids=name_of)
def test_defaults_are_used_unless_a_caller_gives_other_adapters(any_library: Path, case: Case) -> None:
    pool = case.pool()[::-1].copy()
    for library in case.forms(any_library):
        session, fed = case.session(library), case.fed(4, 5)
        ids = fed.pop("adapter")
        case.assert_near(session.run(None, fed)[0], fed | {"adapter": np.zeros(1, np.int32)})
        swapped = fed | {"adapter": (len(case.ranks) - 1 - ids).astype(np.int32), "pool": pool}
        case.assert_near(session.run(None, swapped)[0], fed | {"adapter": ids})


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", BY_ROW, ids=name_of)
def test_a_row_has_the_same_bits_beside_other_adapters(library: Path, case: Case, threads: int) -> None:
    fed = case.fed(9, 60)
    whole = case.run(library, fed, threads)
    session = case.session(library)
    for row in range(9):
        alone = {name: array[row : row + 1] for name, array in fed.items()}
        assert_same_bits(session.run(None, alone)[0], whole[row : row + 1])
        token = {name: array[:, 7] if name != "adapter" else array for name, array in alone.items()}
        assert_same_bits(session.run(None, token)[0], whole[row : row + 1, 7])


@pytest.mark.parametrize("case", OF_TEXTS, ids=name_of)
def test_tokens_have_the_same_bits_with_padding_which_is_zeros(library: Path, case: Case) -> None:
    fed = case.fed(9, 60)
    whole, last = case.run(library, fed), np.array([0, 59, 3, 11, 12, 40, 58, 30, 1], np.int32)
    found = case.run(library, fed | {"last": last}, threads=3)
    padding = np.arange(60) > last[:, None]
    assert_same_bits(found, np.where(padding[..., None], np.float32(0), whole))
    short = {name: array[2:3, :4] if array.ndim > 1 else array[2:3] for name, array in fed.items()}
    assert_same_bits(case.run(library, short), found[2:3, :4])
    for form in case.forms(library):
        other = case.run(form, fed | {"last": last})
        np.testing.assert_allclose(other[~padding], found[~padding], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("operator", ["LowRank", "LowRankAdd", "LowRankRelu", "Int8LowRank"])
def test_rank_0_gives_the_base_to_the_bit(library: Path, operator: str) -> None:
    case = replace(PARTS, operator=operator, ranks=(0, 0))
    fed = case.fed(4, 30)
    fed["base"][0] = -0.0
    expected = fed["base"] + fed["residual"] if "residual" in fed else fed["base"]
    assert_same_bits(
        case.run(library, fed), np.where(expected <= 0, np.float32(0), expected) if case.suffix else expected
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("case", BY_ROW, ids=name_of)
def test_nan_and_infinity_change_only_their_own_token(library: Path, case: Case, value: float) -> None:
    fed = case.fed(4, 9)
    clean = case.run(library, fed)
    fed["x"][0, 4, 3] = value
    found = case.run(library, fed)
    assert not np.isfinite(found[0, 4]).all()
    clean[0, 4] = found[0, 4]
    assert_same_bits(found, clean)


@pytest.mark.parametrize("case", BY_ROW, ids=name_of)
@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0)])
def test_no_rows_and_no_tokens_give_empty_outputs(any_library: Path, case: Case, shape: tuple[int, ...]) -> None:
    for library in case.forms(any_library):
        assert case.run(library, case.fed(*shape)).shape == (*shape, case.outputs)


def ranked(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(pool: NDArray[Any]) -> NDArray[Any]:
        pool[1, OFFSET] = value
        return pool

    return change


ID, ROWS = np.zeros(4, np.int32), random_rows(4, 5, 50)
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(("beyond the slots", {"adapter": np.array([0, 1, each, 0], np.int32)}) for each in (-1, 3, 2**31 - 1)),
    ("adapter for each row", {"adapter": ID[:3]}),
    ("adapter for each row", {"adapter": ID[:, None]}),
    *(("rank of an adapter", {"pool": ranked(each)}) for each in (np.nan, -1, 9, 2.5, np.inf)),
    ("room for this product", {"pool": lambda pool: pool[:, :-4]}),
    ("room for this product", {"pool": lambda pool: pool[None]}),
    ("beyond the slots", {"pool": lambda pool: pool[:0]}),
    ("rows don't fit", {"x": ROWS[..., :49]}),
    ("rows don't fit", {"x": ROWS[0, 0]}),
    ("base doesn't fit", {"base": ROWS[..., :39]}),
    ("base doesn't fit", {"base": ROWS[:, :4, :40]}),
    ("residual doesn't fit", {"residual": ROWS[0, :, :40]}),
    ("beyond its text", {"last": np.array([0, 1, 5, 0], np.int32)}),
    ("beyond its text", {"last": np.array([0, 1, -1, 0], np.int32)}),
    ("last token for each", {"last": np.zeros(3, np.int32)}),
]


@pytest.mark.parametrize("format", ["", "Int8"])
@pytest.mark.parametrize(("message", "changes"), REFUSED)
def test_inputs_that_do_not_fit_are_refused(
    any_library: Path, message: str, changes: dict[str, Any], format: str
) -> None:
    cases = [Case(f"{format}LowRankAdd" if "residual" in changes else f"{format}LowRank")]
    if {"adapter", "pool", "x"} & set(changes) and "rank" not in message:
        cases.append(Case(f"{format}AdapterLinear"))
    for case in cases:
        changed = {name: each(case.pool()) if callable(each) else each for name, each in changes.items()}
        with pytest.raises(REFUSALS, match=f"hfx: .*{message}"):
            case.run(any_library, case.fed(4, 5) | changed)


def test_last_tokens_of_rows_without_tokens_are_refused(any_library: Path) -> None:
    with pytest.raises(REFUSALS, match="hfx: there must be a last token"):
        Case().run(any_library, Case().fed(4) | {"last": ID})


@pytest.mark.parametrize("case", [Case(rooms=(257,)), Case(columns=(40, 0), rooms=(8, 4)), Case(inputs=0)], ids=name_of)
def test_attributes_out_of_range_are_refused(any_library: Path, case: Case) -> None:
    with pytest.raises(REFUSALS, match="hfx: an attribute"):
        case.session(any_library)


@pytest.mark.parametrize(
    "case",
    [*BY_ROW, Case("LowRankGelu", inputs=17, columns=(33,)), Case("Int8LowRank", inputs=17, columns=(33,))],
    ids=name_of,
)
@pytest.mark.parametrize("at_end", [False, True])
def test_adapter_operators_touch_nothing_beyond_a_tensor(library: Path, case: Case, at_end: bool) -> None:
    session, behind = case.session(library), 3  # numbers of no meaning behind the operator's
    pool = case.pool()[:, :-behind]
    for shape in ((1, 1), (5,), (4, 17)):
        fed = {name: copy_of(array, at_end) for name, array in (case.fed(*shape) | {"pool": pool}).items()}
        expected = session.run(None, fed)[0]
        y = guarded(expected.shape, np.float32, at_end)
        binding = session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in fed.items()}
        for name, value in values.items():
            assert value.data_ptr() == fed[name].ctypes.data
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        assert_same_bits(y, expected)
