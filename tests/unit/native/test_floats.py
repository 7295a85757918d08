"""Norms, small linears, token sums and log-softmax: near float64, and bit equal with all kernels in any batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hfx.exporter.graph import operators
from hfx.exporter.graph.reference import ACTIVATIONS
from tests.unit.native.guarded import copy_of, guarded
from tests.unit.native.libraries import SANITIZED
from tests.unit.native.reference import assert_same_bits, random_rows
from tests.unit.native.sessions import open_model, options

WIDTHS = (1, 3, 15, 16, 17, 48, 63, 64, 65, 100, 127, 768, 1000)
COUNTS = (1, 4, 5, 70)
OUTPUTS = (1, 2, 9, 16, 17, 40, 127, 128, 200)  # from 128 on, the weights are copied to panels
EPSILON = 1e-5
KINDS = {suffix: kind for kind, suffix in operators.SUFFIXES.items()}


@pytest.fixture
def library(float_library: Path) -> Path:
    """A library with each kind of float kernels."""
    return float_library


@dataclass(frozen=True)
class Case:
    """An operator, its inputs and constants, and its expected result by float64."""

    operator: str
    fed: dict[str, np.ndarray]
    expected: Callable[..., np.ndarray]
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def model(self, portable: bool = False) -> onnx.ModelProto:
        """Return the model; with `portable`, it has its definition."""
        first, *others = self.fed
        names = [first, *self.constants, *others]
        attributes = {"epsilon": EPSILON} if self.operator.endswith("Norm") else {}
        node = helper.make_node(self.operator, names, ["y"], domain="hfx", **attributes)
        types = {"last": TensorProto.INT32}
        inputs = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in self.fed]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        weights = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("hfx", 1), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(
            helper.make_graph([node], "one", inputs, outputs, weights),
            opset_imports=opsets,
            functions=[operators.function(self.operator)] if portable else [],
            ir_version=10,
        )

    def session(self, library: Path | None, threads: int = 1) -> onnxruntime.InferenceSession:
        return open_model(self.model(portable=library is None), options(library, threads))

    def run(self, library: Path | None, threads: int = 1) -> Any:
        return self.session(library, threads).run(None, self.fed)[0]


def normed(x: np.ndarray, mean: Any) -> np.ndarray:
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + EPSILON)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def layer_norm(x: np.ndarray) -> Case:
    weight, bias = random_rows(2, x.shape[-1], seed=3)
    constants = {"weight": weight, "bias": bias}
    return Case("LayerNorm", {"x": x}, lambda x: normed(x, x.mean(-1, keepdims=True)) * weight + bias, constants)


def rms_norm(x: np.ndarray) -> Case:
    weight = random_rows(1, x.shape[-1], seed=3)[0]
    return Case("RmsNorm", {"x": x}, lambda x: normed(x, 0) * weight, {"weight": weight})


def unit_norm(x: np.ndarray) -> Case:
    return Case("UnitNorm", {"x": x}, lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), EPSILON))


def float_linear(x: np.ndarray, outputs: int = 9) -> Case:
    weight, bias = random_rows(outputs, x.shape[-1], seed=4), random_rows(1, outputs, seed=5)[0]
    return Case("FloatLinear", {"x": x}, lambda x: x @ weight.T + bias, {"weight": weight, "bias": bias})


def in_bfloat16(case: Case) -> Case:
    """Return the case of a float linear in bfloat16."""
    weight, bias = case.constants["weight"].astype(bfloat16), case.constants["bias"]
    exact = weight.astype(np.float64)

    def expected(x: np.ndarray, residual: Any = 0.0) -> np.ndarray:
        return x.astype(np.float32).astype(bfloat16).astype(np.float64) @ exact.T + bias + residual

    operator = case.operator.replace("Float", "Bfloat16")
    return replace(case, operator=operator, expected=expected, constants={"weight": weight, "bias": bias})


def activated(suffix: str) -> Callable[[np.ndarray], Case]:
    """Return a maker of linears whose outputs go through an activation."""
    formula = ACTIVATIONS[KINDS[suffix]]

    def make(x: np.ndarray) -> Case:
        case = float_linear(x)
        return replace(case, operator=case.operator + suffix, expected=lambda x: formula(case.expected(x)))

    return make


def with_residual(x: np.ndarray, outputs: int = 200) -> Case:
    linear, residual = float_linear(x, outputs), random_rows(len(x), outputs, seed=6)
    fed = {"x": x, "residual": residual}
    return replace(linear, operator="FloatLinearAdd", fed=fed, expected=lambda x, added: linear.expected(x) + added)


def token_sum(x: np.ndarray) -> Case:
    """Return the case of texts of one token and of all tokens."""
    hidden = np.stack([x, x[::-1]])
    weights = np.stack([np.arange(len(x)) == 0, np.ones(len(x))]).astype(np.float32)
    return Case("TokenSum", {"weights": weights, "x": hidden}, lambda weights, x: np.einsum("rt,rtw->rw", weights, x))


def softmax(x: np.ndarray) -> Case:
    return Case("LogSoftmax", {"x": x}, log_softmax)


CASES: dict[str, Callable[[np.ndarray], Case]] = {
    "LayerNorm": layer_norm,
    "RmsNorm": rms_norm,
    "UnitNorm": unit_norm,
    "FloatLinear": float_linear,
    "TokenSum": token_sum,
    "LogSoftmax": softmax,
    "FloatLinearGelu": activated("Gelu"),
    "FloatLinear of many outputs": lambda x: float_linear(x, 200),
    "FloatLinearAdd": lambda x: with_residual(x, 9),
    "FloatLinearAdd of many outputs": with_residual,
    "Bfloat16Linear": lambda x: in_bfloat16(float_linear(x)),
    "Bfloat16Linear of many outputs": lambda x: in_bfloat16(float_linear(x, 200)),
    "Bfloat16LinearAdd of many outputs": lambda x: in_bfloat16(with_residual(x)),
}
BY_ROW = [name for name, make in CASES.items() if [*make(np.ones((1, 1), np.float32)).fed] == ["x"]]
every = pytest.mark.parametrize("name", CASES)


def assert_near(case: Case, found: np.ndarray) -> None:
    doubles = [array.astype(np.float64) for array in case.fed.values()]
    expected = case.expected(*doubles)
    assert found.shape == expected.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max(initial=0)))


@every
def test_every_operator_is_near_float64_at_every_width(library: Path, any_library: Path, name: str) -> None:
    for width in WIDTHS:
        cases = [CASES[name](random_rows(count, width)) for count in COUNTS]  # of one model
        session, other = (cases[0].session(each) for each in (library, any_library))
        for case in cases:
            (found,) = session.run(None, case.fed)
            assert_near(case, found)
            assert_same_bits(found, other.run(None, case.fed)[0])


@every
def test_the_onnx_definition_of_every_operator_is_near_float64(any_library: Path, name: str) -> None:
    case = CASES[name](random_rows(7, 100))
    assert_near(case, case.run(None))


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_linears_of_any_width_are_near_float64(library: Path, outputs: int) -> None:
    for width in (1, 16, 50, 768):
        case = float_linear(random_rows(37, width), outputs)
        assert_near(case, case.run(library))


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("rounded", [False, True])
def test_every_activation_of_a_linear_is_near_float64(
    library: Path, any_library: Path, suffix: str, rounded: bool
) -> None:
    case = activated(suffix)(random_rows(37, 50))
    if rounded:
        linear, formula = in_bfloat16(float_linear(case.fed["x"])), ACTIVATIONS[KINDS[suffix]]
        operator = linear.operator + suffix
        case = replace(linear, operator=operator, expected=lambda x: formula(linear.expected(x)))
    expected = case.expected(case.fed["x"].astype(np.float64))
    for found in (case.run(library), case.run(None)):
        # A float32 sum of 50 products of large numbers is off by up to 1e-5.
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))
    assert_same_bits(case.run(library), case.run(any_library))


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_has_the_same_bits_in_any_batch_with_any_threads(library: Path, name: str, threads: int) -> None:
    x = random_rows(130, 700)
    whole = CASES[name](x)
    session, expected = whole.session(library, threads), whole.run(library)
    for start, count in [(0, 130), (3, 1), (5, 2), (7, 3), (11, 5), (1, 64), (0, 129)]:
        part = x[start : start + count]
        assert_same_bits(session.run(None, {"x": part})[0], expected[start : start + count])
    assert_same_bits(session.run(None, {"x": x.reshape(10, 13, 700)})[0], expected.reshape(10, 13, -1))


@pytest.mark.parametrize("outputs", [9, 200])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rounded", [False, True])
def test_padding_is_zeros_and_tokens_are_what_they_are_without_it(
    library: Path, outputs: int, threads: int, rounded: bool
) -> None:
    lengths = np.array([1, 300, 7, 299], np.int32)
    case = with_residual(random_rows(4 * 300, 50), outputs)
    case = in_bfloat16(case) if rounded else case
    shaped = {name: array.reshape(4, 300, -1) for name, array in case.fed.items()}
    found = replace(case, fed=shaped | {"last": lengths - 1}).run(library, threads)
    real = np.arange(300) < lengths[:, None]
    assert_same_bits(found[real], case.run(library).reshape(found.shape)[real])
    assert not found[~real].any()


@pytest.mark.parametrize(("last", "message"), [([0, 5], "beyond"), ([-1, 0], "beyond"), ([0, 0, 0], "for each text")])
def test_last_tokens_that_do_not_fit_are_refused(any_library: Path, last: list[int], message: str) -> None:
    case = float_linear(random_rows(2 * 5, 8))
    fed = {"x": case.fed["x"].reshape(2, 5, 8), "last": np.array(last, np.int32)}
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException), match=f"hfx: .*{message}"):
        replace(case, fed=fed).run(any_library)


def test_a_residual_that_does_not_fit_is_refused(any_library: Path) -> None:
    case = with_residual(random_rows(2, 8))
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException), match="hfx: the residual"):
        case.session(any_library).run(None, case.fed | {"residual": case.fed["residual"][:1]})


def test_a_sum_of_tokens_is_the_same_beside_padding_and_other_texts(library: Path) -> None:
    hidden = random_rows(40, 7, 500)
    weights = (np.arange(7) < np.arange(40)[:, None] % 8).astype(np.float32)
    case = Case("TokenSum", {"weights": weights, "x": hidden}, lambda weights, x: np.einsum("rt,rtw->rw", weights, x))
    found = case.run(library, threads=3)
    assert_near(case, found)
    for row in range(40):
        tokens = row % 8
        alone = {"weights": weights[row : row + 1, :tokens], "x": hidden[row : row + 1, :tokens]}
        assert_same_bits(case.session(library).run(None, alone)[0], found[row : row + 1])


@pytest.mark.parametrize("name", BY_ROW)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_change_only_their_own_row(library: Path, name: str, value: float) -> None:
    for width, place in ((100, 3), (100, 98), (17, 16)):
        clean = CASES[name](random_rows(9, width))
        x = clean.fed["x"].copy()
        x[4, place] = value
        found = CASES[name](x).run(library)
        assert not np.isfinite(found[4]).all()
        assert_same_bits(np.delete(found, 4, 0), np.delete(clean.run(library), 4, 0))


def test_extreme_values_give_the_same_bits_with_all_kernels(library: Path, any_library: Path) -> None:
    x = np.zeros((5, 100), np.float32)
    x[1], x[2], x[3], x[4] = 1e18, 1e-30, np.arange(100) * 1e3, -3
    for name, make in CASES.items():
        case = make(x)
        assert_same_bits(case.run(library), case.run(any_library))
        if "Linear" not in name and name != "TokenSum":
            assert np.isfinite(case.run(library)).all(), name


@pytest.mark.filterwarnings("ignore:overflow encountered")  # some products are infinite
def test_bfloat16_has_the_same_bits_with_all_kernels_for_numbers_of_any_size(library: Path, any_library: Path) -> None:
    random = np.random.default_rng(0)
    for scale in (1e-45, 1e-38, 1e-30, 2.0**-55, 1e-10, 1.0, 1e19, 1e38):
        size = np.float32(scale) * np.exp2(random.integers(-9, 1, (37, 301))).astype(np.float32)
        case = in_bfloat16(float_linear(size * random_rows(37, 301), 200))
        for weights in (case.constants["weight"], np.float32(scale) * case.constants["weight"].astype(np.float32)):
            sized = replace(case, constants=case.constants | {"weight": weights.astype(bfloat16)})
            assert_same_bits(sized.run(library), sized.run(any_library))


def test_a_token_at_minus_infinity_has_no_probability(library: Path) -> None:
    x = random_rows(3, 50)
    x[1, 7] = -np.inf
    found = softmax(x).run(library)
    assert found[1, 7] == -np.inf
    np.testing.assert_allclose(np.exp(found.astype(np.float64)).sum(1), 1, atol=1e-5)


@every
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
def test_empty_inputs_give_empty_or_zero_outputs(any_library: Path, name: str, shape: tuple[int, int]) -> None:
    if "Linear" in name and not shape[1]:
        pytest.skip("weights of no inputs are refused")
    found = CASES[name](np.zeros(shape, np.float32)).run(any_library)
    linear = (shape[0], 200 if name.endswith("outputs") else 9)
    shapes = {"TokenSum": (2, shape[1])} | dict.fromkeys((each for each in CASES if "Linear" in each), linear)
    assert found.shape == shapes.get(name, shape)
    assert not found.any()


VECTOR, MATRIX = np.ones(8, np.float32), np.ones((4, 8), np.float32)
REFUSED: list[tuple[str, dict[str, np.ndarray]]] = [
    ("LayerNorm", {"weight": VECTOR, "bias": VECTOR[:7]}),
    ("LayerNorm", {"weight": VECTOR[:7], "bias": VECTOR}),
    ("FloatLinear", {"weight": VECTOR, "bias": VECTOR[:1]}),
    ("FloatLinear", {"weight": MATRIX, "bias": VECTOR[:3]}),
    ("FloatLinear", {"weight": MATRIX[:0], "bias": VECTOR[:0]}),
    ("FloatLinear", {"weight": MATRIX[None], "bias": VECTOR[:4]}),
]


@pytest.mark.parametrize(("name", "constants"), REFUSED)
def test_constants_that_do_not_fit_each_other_are_refused(
    any_library: Path, name: str, constants: dict[str, np.ndarray]
) -> None:
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match="hfx: "):
        Case(name, {"x": random_rows(2, 8)}, log_softmax, constants).session(any_library)


@pytest.mark.parametrize("name", ["LayerNorm", "RmsNorm", "FloatLinear", "Bfloat16Linear"])
@pytest.mark.parametrize("shape", [(2, 7), (2, 9), (2, 0), (8, 2), (7,), ()])
def test_rows_that_do_not_fit_are_refused(any_library: Path, name: str, shape: tuple[int, ...]) -> None:
    session = CASES[name](random_rows(2, 8)).session(any_library)
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException), match="hfx: "):
        session.run(None, {"x": np.ones(shape, np.float32)})


@pytest.mark.parametrize(
    "shapes", [((2, 3), (2, 4, 8)), ((2, 3), (1, 3, 8)), ((2, 3), (2, 3)), ((6,), (2, 3, 8)), ((2, 3, 1), (2, 3, 8))]
)
def test_token_weights_that_do_not_fit_the_rows_are_refused(
    any_library: Path, shapes: tuple[tuple[int, ...], ...]
) -> None:
    session = token_sum(random_rows(3, 8)).session(any_library)
    fed = {name: np.ones(shape, np.float32) for name, shape in zip(("weights", "x"), shapes, strict=True)}
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException), match="hfx: weights must be"):
        session.run(None, fed)


@every
@pytest.mark.parametrize("at_end", [False, True])
def test_float_operators_touch_nothing_beyond_a_tensor(library: Path, name: str, at_end: bool) -> None:
    for count, width in ((1, 1), (5, 17), (3, 64), (33, 100)):
        case = CASES[name](random_rows(count, width))
        model, made, kept = case.model(), options(library), []
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            array = copy_of(array.view(np.uint16) if array.dtype == bfloat16 else array, at_end)
            kept += [array, onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.data_type)]
            made.add_initializer(tensor.name, kept[-1])
        session = open_model(model, made)
        fed = {key: copy_of(array, at_end) for key, array in case.fed.items()}
        expected = case.run(library)
        y = guarded(expected.shape, np.float32, at_end)
        binding = session.io_binding()
        for key, array in fed.items():
            binding.bind_input(key, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        session.run_with_iobinding(binding)
        assert_same_bits(y, expected)


@pytest.mark.full
@settings(max_examples=50 if SANITIZED else 200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(sorted(CASES)), st.integers(1, 40), st.integers(1, 300), st.integers(1, 3))
def test_random_float_inputs_give_the_same_bits_with_all_kernels(
    library: Path, any_library: Path, data: st.DataObject, name: str, count: int, width: int, threads: int
) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x = (rng.uniform(-1, 1, (count, width)) * 10.0 ** rng.uniform(-20, 15, (count, 1))).astype(np.float32)
    x[rng.random(x.shape) < 0.02] = rng.choice([0.0, -0.0, 1e-45, 1e38, np.nan, np.inf, -np.inf])
    case = CASES[name](x)
    assert_same_bits(case.run(library, threads), case.run(any_library))
