"""Random shapes, values and threads give the bits of numpy, whatever the kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.native.libraries import SANITIZED
from tests.unit.native.reference import assert_same_bits, random_linear
from tests.unit.native.sessions import Operator

# What a row may be filled with beside numbers of its own size.
SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 1e-30, 300.0, -1e38, np.finfo(np.float32).max, np.nan, np.inf, -np.inf)
SIZES = st.one_of(st.integers(1, 200), st.sampled_from([64, 128, 256, 512, 1000]))

pytestmark = pytest.mark.full
fuzz = settings(max_examples=50 if SANITIZED else 200, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def rows(draw: st.DrawFn, inputs: int) -> np.ndarray:
    """Draw [0 to 70, inputs]: each row of a magnitude from 1e-40 to 1e38, some with special values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    count = draw(st.integers(0, 70))
    x = rng.uniform(-1, 1, (count, inputs)) * 10.0 ** rng.uniform(-40, 38, (count, 1))
    for row in range(count):
        if rng.random() < 0.3:
            x[row, rng.random(inputs) < rng.choice([0.01, 0.5, 1])] = rng.choice(SPECIAL)
    return x.astype(np.float32)


@fuzz
@given(st.data(), SIZES, SIZES, st.integers(1, 3))
def test_random_linears_heads_and_residuals_have_the_bits_of_numpy(
    library: Path, data: st.DataObject, inputs: int, outputs: int, threads: int
) -> None:
    linear, x = random_linear(inputs, outputs), data.draw(rows(inputs))
    expected, residual = linear(x), np.random.default_rng(0).standard_normal((len(x), outputs), np.float32)
    assert_same_bits(Operator(library, "Int8Linear", linear, threads)(x), expected)
    with np.errstate(invalid="ignore"):
        added = Operator(library, "Int8LinearAdd", linear, threads)(x, residual=residual)
        assert_same_bits(added, expected + residual)
    want = np.array(data.draw(st.booleans()))
    logits, ids = Operator(library, "Int8Head", linear, threads)(x, wants_logits=want)
    assert_same_bits(logits, expected if want else expected[:0])
    np.testing.assert_array_equal(ids[:, 0], np.where(np.isnan(expected), -np.inf, expected).argmax(1))


@fuzz
@given(st.data(), SIZES, SIZES, st.sampled_from(["Relu", "Gelu", "GeluTanh", "QuickGelu", "Silu"]))
def test_random_gated_linears_are_the_product_of_their_halves(
    library: Path, data: st.DataObject, inputs: int, outputs: int, name: str
) -> None:
    linear, x = random_linear(inputs, 2 * outputs), data.draw(rows(inputs))
    gated = Operator(library, f"Int8LinearGated{name}", linear, threads=2)(x)
    with np.errstate(over="ignore", invalid="ignore"):
        gate = Operator(library, f"Int8Linear{name}", linear.half(0))(x)
        assert_same_bits(gated, gate * linear.half(1)(x))
