"""A sound checkpoint for each test to damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rigs.checkpoints import tiny_checkpoints
from tests.rigs.files.batch_jobs import batch, batch_repository, classifier  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoints.save(tmp_path_factory.mktemp("checkpoints") / "good", tiny_checkpoints.bert())


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "model"))
