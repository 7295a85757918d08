"""The private copy of the models is made while they are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.errors import ModelCorrupt, RepositoryError, UsageError
from hfx.triton import EmbeddedServer
from hfx.triton.models import GPU_DEVICES, copy_checked


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the models `a` and `b`."""
    for name in ("a", "b"):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.pbtxt").write_text(f'name: "{name}"\n', "utf-8")
    return tmp_path / "models"


@pytest.mark.parametrize(("damaged", "left"), [([], ["a", "b"]), (["b"], ["a"])])
def test_models_that_the_check_returns_are_left_out(
    damaged: list[str], left: list[str], repository: Path, tmp_path: Path
) -> None:
    target = tmp_path / "copy"
    copy_checked(repository, (), lambda: damaged, target)
    assert sorted(path.name for path in target.iterdir()) == left


def test_a_damaged_model_that_cannot_be_copied_is_left_out(repository: Path, tmp_path: Path) -> None:
    (repository / "b" / "broken").symlink_to("missing")
    with pytest.raises(RepositoryError, match="broken"):
        copy_checked(repository, (), lambda: [], tmp_path / "copy")
    copy_checked(repository, (), lambda: ["b"], tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["a"]


def test_an_error_of_the_check_comes_before_one_of_the_copying(repository: Path, tmp_path: Path) -> None:
    def check() -> list[str]:
        raise ModelCorrupt("It is damaged.", "Export it again.")

    (repository / "b" / "broken").symlink_to("missing")
    with pytest.raises(ModelCorrupt):
        copy_checked(repository, (), check, tmp_path / "copy")


@pytest.mark.skipif(any(any(Path("/dev").glob(each)) for each in GPU_DEVICES), reason="this machine has a GPU")
def test_a_missing_gpu_is_refused_before_anything_is_copied(repository: Path) -> None:
    (repository / "a" / "config.pbtxt").write_text('name: "a" instance_group { kind: KIND_GPU }', "utf-8")
    (repository / "b" / "broken").symlink_to("missing")  # a copy would fail
    with pytest.raises(UsageError, match="configured for a GPU"):
        EmbeddedServer(repository, device="gpu").start()
