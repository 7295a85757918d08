"""Fixtures: the native operators with each processor's kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.machine.tiers import full
from tests.unit.native.libraries import CASES, FLOAT_CASES, OTHERS, open_case


@pytest.fixture(scope="session", params=[full(case) if case in OTHERS else case for case in CASES])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with chosen kernels."""
    return open_case(request.param, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session", params=[case if case in FLOAT_CASES else full(case) for case in CASES])
def float_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with chosen kernels, for tests of floats alone, of which there are two kinds of kernels."""
    return open_case(request.param, tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def any_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library for tests whose result does not depend on the kernels."""
    return open_case("compiled avx512-vnni", tmp_path_factory.mktemp("native"))
