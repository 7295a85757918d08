"""The stand-ins of CUDA's libraries, compiled once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rigs.machine.cuda_host import build


@pytest.fixture(scope="session")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the libraries that the CUDA provider links with."""
    folder = tmp_path_factory.mktemp("cuda")
    build(folder)
    return folder
