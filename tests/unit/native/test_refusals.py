"""Inputs that do not fit are refused with a status and message; none ends the process."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as errors

from hfx.errors import NativeMissing
from hfx.native import kernels, library
from hfx.python_backends.engine.sessions import operators_refusal
from hfx.python_backends.engine.spec import OperatorLibrary
from hfx.python_backends.errors import ProviderMissing
from tests.unit.native.reference import random_linear, random_rows
from tests.unit.native.sessions import Operator, one_node, open_model, options

LINEAR = random_linear(100, 130)  # weights [3, 32, 64, 4]
CONSTANTS = {"weights": LINEAR.packed(), "scale": LINEAR.scale, "bias": LINEAR.bias}
OVER = 65537
MESSAGE = r"hfx: |in_features"  # a missing attribute is named by ONNX Runtime


def constants(**changes: np.ndarray) -> dict[str, np.ndarray]:
    return {**CONSTANTS, **changes}


def weights(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int8)


def scales(count: int) -> np.ndarray:
    return np.ones(count, np.float32)


def refused(library: Path, operator: str, arrays: dict[str, np.ndarray], features: Any = 100, **more: Any) -> None:
    """Check that opening a session fails with a message of the operator itself."""
    attributes = {} if features is None else {"in_features": features}
    with pytest.raises((errors.InvalidArgument, errors.RuntimeException, errors.Fail), match=MESSAGE):
        open_model(one_node(operator, arrays, attributes, **more), options(library))


@pytest.mark.parametrize(
    "values",
    [
        weights(3, 32, 64),
        weights(3, 32, 64, 4, 1),
        weights(3, 32, 32, 8),
        weights(3, 32, 64, 8),
        weights(3, 24, 64, 4),
        weights(2, 32, 64, 4),
        weights(5, 32, 64, 4),
        weights(0, 32, 64, 4),
        weights(3, 0, 64, 4),
        weights(3, 32, 64, 0),
        weights(2**40, 32, 64, 0),
        weights(0, 2**40, 64, 4),
        weights(1, 1, 1, 1, 1, 1, 1, 1, 1),
        weights(),
    ],
    ids=lambda values: str(values.shape),
)
@pytest.mark.parametrize("operator", ["Int8Linear", "Int8LinearGatedSilu", "Int8Head", "Int8Rows"])
def test_weights_in_another_layout_are_refused(any_library: Path, operator: str, values: np.ndarray) -> None:
    arrays = constants(weights=values)
    if operator == "Int8Rows":
        del arrays["bias"]
    refused(any_library, operator, arrays)


@pytest.mark.parametrize("features", [None, 0, -1, 64, 129, 2**40, -(2**63), 2**63 - 1])
def test_a_wrong_in_features_is_refused(any_library: Path, features: int | None) -> None:
    refused(any_library, "Int8Linear", CONSTANTS, features)


def test_more_inputs_than_32_bits_can_sum_are_refused(any_library: Path) -> None:
    arrays = {"weights": weights(1, (65536 + 64) // 4, 64, 4), "scale": scales(1), "bias": scales(1)}
    refused(any_library, "Int8Linear", arrays, OVER)


@pytest.mark.parametrize("count", [0, 1, 128, 193])
def test_the_wrong_number_of_scales_is_refused(any_library: Path, count: int) -> None:
    refused(any_library, "Int8Linear", constants(scale=scales(count), bias=scales(count)))


@pytest.mark.parametrize("count", [0, 1, 129, 131])
def test_the_wrong_number_of_biases_is_refused(any_library: Path, count: int) -> None:
    refused(any_library, "Int8Linear", constants(bias=scales(count)))


def test_an_odd_number_of_gated_columns_is_refused(any_library: Path) -> None:
    refused(any_library, "Int8LinearGatedSilu", constants(weights=weights(4, 32, 64, 4), scale=scales(129)))


@pytest.mark.parametrize(("name", "kind"), [("weights", "INT8"), ("scale", "FLOAT"), ("bias", "FLOAT")])
def test_constants_fed_as_inputs_are_refused(any_library: Path, name: str, kind: str) -> None:
    refused(any_library, "Int8Linear", CONSTANTS, fed={name: getattr(TensorProto, kind)})


@pytest.mark.parametrize(
    "arrays",
    [constants(weights=CONSTANTS["weights"].astype(np.uint8)), constants(scale=scales(130).astype(np.float64))],
    ids=["uint8", "float64"],
)
def test_constants_of_other_types_are_refused(any_library: Path, arrays: dict[str, np.ndarray]) -> None:
    with pytest.raises(Exception, match="Type Error"):
        open_model(one_node("Int8Linear", arrays, {"in_features": 100}), options(any_library))


@pytest.mark.parametrize("shape", [(2, 99), (2, 101), (100, 2), (), (2, 0), (1, 1, 1, 1, 1, 1, 1, 1, 100)])
@pytest.mark.parametrize("operator", ["Int8Linear", "Int8LinearAdd", "Int8Head"])
def test_rows_of_the_wrong_shape_are_refused(any_library: Path, operator: str, shape: tuple[int, ...]) -> None:
    more = {"Int8LinearAdd": {"residual": scales(130)}, "Int8Head": {"wants_logits": np.array(True)}}
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        Operator(any_library, operator, LINEAR)(np.zeros(shape, np.float32), **more.get(operator, {}))


def test_a_head_with_one_dimensional_input_is_refused(any_library: Path) -> None:
    """Its output could not say that there are no logits."""
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        Operator(any_library, "Int8Head", LINEAR)(random_rows(100), wants_logits=np.array(False))


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_a_head_with_an_empty_wants_logits_is_refused(any_library: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        Operator(any_library, "Int8Head", LINEAR)(random_rows(2, 100), wants_logits=np.zeros(shape, bool))


@pytest.mark.parametrize("shape", [(2, 129), (3, 130), (130,), (0, 130), ()])
def test_a_residual_of_the_wrong_shape_is_refused(any_library: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        Operator(any_library, "Int8LinearAdd", LINEAR)(random_rows(2, 100), residual=np.zeros(shape, np.float32))


@pytest.mark.parametrize("last", [[-1, 0], [0, 3], [0, 2**31 - 1], [0, 0, 0, 0], [0] * 7, []])
def test_last_tokens_beyond_the_rows_are_refused(any_library: Path, last: list[int]) -> None:
    operator = Operator(any_library, "Int8Linear", LINEAR, padded=True)
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        operator(random_rows(2, 3, 100), last=np.array(last, np.int32))


@pytest.mark.parametrize("shape", [(129, 5), (131, 5), (130, 257), (130,), (130, 5, 1), ()])
def test_outlier_columns_of_the_wrong_shape_are_refused(any_library: Path, shape: tuple[int, ...]) -> None:
    refused(any_library, "Int8HeadOutliers", constants(columns=np.zeros(shape, np.float32)))


@pytest.mark.parametrize("shape", [(2, 4), (1, 5), (0, 5), ()])
def test_outliers_of_the_wrong_shape_are_refused(any_library: Path, shape: tuple[int, ...]) -> None:
    operator = Operator(any_library, "Int8HeadOutliers", LINEAR, columns=np.zeros((130, 5), np.float32))
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        operator(random_rows(2, 100), outliers=np.zeros(shape, np.float32), wants_logits=np.array(True))


def test_a_session_goes_on_after_a_refusal(any_library: Path) -> None:
    operator, x = Operator(any_library, "Int8Linear", LINEAR), random_rows(2, 100)
    with pytest.raises(errors.InvalidArgument, match="hfx: "):
        operator(x[:, :99])
    np.testing.assert_array_equal(operator(x), LINEAR(x))


def test_an_onnx_runtime_without_api_17_is_refused(any_library: Path, tmp_path: Path) -> None:
    """It has no function table of version 17; version 1 makes the status."""
    statuses: list[tuple[int, bytes]] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code: int, message: bytes) -> int:
        statuses.append((code, message))
        return 1

    table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def api(version: int) -> int | None:
        return ctypes.addressof(table) if version == 1 else None

    base = (ctypes.c_void_p * 2)(ctypes.cast(api, ctypes.c_void_p), None)
    fresh = tmp_path / "fresh.so"
    shutil.copy(any_library, fresh)
    register = ctypes.CDLL(str(fresh)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1
    assert len(statuses) == 1 and b"1.17" in statuses[0][1]


def test_a_processor_without_kernels_is_refused(
    any_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = tmp_path / "fresh.so"
    shutil.copy(any_library, fresh)
    monkeypatch.setenv("HFX_NATIVE_KERNELS", "none")
    with pytest.raises(errors.Fail, match="hfx: this processor"):
        onnxruntime.SessionOptions().register_custom_ops_library(str(fresh))


@pytest.mark.parametrize("name", ["avx512-vni", "AVX-VNNI", "", " none"])
def test_kernels_that_are_not_known_are_refused_by_their_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = tmp_path / "fresh.so"
    shutil.copy(library(), fresh)
    monkeypatch.setenv("HFX_NATIVE_KERNELS", name)
    with pytest.raises(
        errors.Fail, match="is none of amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni, avx2 and none"
    ):
        onnxruntime.SessionOptions().register_custom_ops_library(str(fresh))
    with pytest.raises(NativeMissing, match="HFX_NATIVE_KERNELS is none of"):
        kernels()
    with pytest.raises(ProviderMissing, match="HFX_NATIVE_KERNELS is none of"):
        operators_refusal(OperatorLibrary(fresh, hashlib.sha256(fresh.read_bytes()).hexdigest(), "float32", {}))


def test_operators_are_all_there_after_a_registration_that_failed_midway(
    any_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third operator of a function table can't be added, once."""
    monkeypatch.setenv("HFX_NATIVE_KERNELS", any_library.stem.partition("-")[2])
    added: list[int] = []
    domains: list[int] = []
    failure = 7

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))
    def new_domain(name: bytes, out: Any) -> None:
        out[0] = 100 + len(domains)
        domains.append(len(added))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def add_operator(domain: int, operator: int) -> int | None:
        added.append(domain)
        return failure if len(added) == 3 else None

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    def add_domain(options: int, domain: int) -> None:
        given.append(domain)

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
    def cpu_memory(kind: int, memory: int, out: Any) -> None:
        out[0] = 1

    given: list[int] = []
    table = (ctypes.c_void_p * 275)()
    for slot, function in ((26, new_domain), (27, add_operator), (28, add_domain), (69, cpu_memory)):
        table[slot] = ctypes.cast(function, ctypes.c_void_p).value

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def api(version: int) -> int:
        return ctypes.addressof(table)

    base = (ctypes.c_void_p * 2)(ctypes.cast(api, ctypes.c_void_p), None)
    fresh = tmp_path / "fresh.so"
    shutil.copy(any_library, fresh)
    register = ctypes.CDLL(str(fresh)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == failure
    assert (register(None, base), register(None, base)) == (None, None)
    assert given == [101, 101] and domains == [0, 3]
    assert len(added) - 3 > 16 and set(added[3:]) == {101}
