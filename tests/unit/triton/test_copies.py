"""The private copy of the models is made while they are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfx.errors import ModelCorrupt, RepositoryError
from hfx.triton.models import copy_checked


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
    assert copy_checked(repository, (), lambda: damaged, target) == left
    assert sorted(path.name for path in target.iterdir()) == left


def test_a_damaged_model_that_cannot_be_copied_is_left_out(repository: Path, tmp_path: Path) -> None:
    (repository / "b" / "broken").symlink_to("missing")
    with pytest.raises(RepositoryError, match="broken"):
        copy_checked(repository, (), lambda: [], tmp_path / "copy")
    assert copy_checked(repository, (), lambda: ["b"], tmp_path / "copy") == ["a"]


def test_an_error_of_the_check_comes_before_one_of_the_copying(repository: Path, tmp_path: Path) -> None:
    def check() -> list[str]:
        raise ModelCorrupt("It is damaged.", "Export it again.")

    (repository / "b" / "broken").symlink_to("missing")
    with pytest.raises(ModelCorrupt):
        copy_checked(repository, (), check, tmp_path / "copy")
