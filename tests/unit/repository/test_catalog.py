"""The catalogue: models of hfx, damaged models, and folders of others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hfx.cli import main
from hfx.errors import RepositoryError
from hfx.repository import model, models
from tests.rigs.files.manifests import fill


def test_the_catalog_lists_models_without_their_members(tmp_path: Path) -> None:
    complete = fill(tmp_path, "m")
    fill(tmp_path, "a", members=())
    (tmp_path / "foreign").mkdir()
    (tmp_path / "README.md").touch()
    (tmp_path / ".hfx-staging-m-x").mkdir()
    entries = models(tmp_path)
    assert [entry.name for entry in entries] == ["a", "foreign", "m"]
    assert [entry.foreign for entry in entries] == [False, True, False]
    assert entries[2].manifest == complete


def test_a_damaged_manifest_is_an_entry_with_its_problem(tmp_path: Path) -> None:
    fill(tmp_path, "m")
    (tmp_path / "m/hfx.json").write_text("{")
    fill(tmp_path, "n", members=())
    (tmp_path / "n").rename(tmp_path / "o")
    entries = {entry.name: entry for entry in models(tmp_path)}
    assert "is not JSON" in (entries["m"].problem or "")
    assert "is the manifest of 'n'" in (entries["o"].problem or "")
    assert {name: entry.foreign for name, entry in entries.items()} == {"m": False, "m_net": True, "o": False}


def test_one_model_is_found_by_name(tmp_path: Path) -> None:
    complete = fill(tmp_path, "m")
    assert model(tmp_path, "m") == complete
    with pytest.raises(RepositoryError, match="no model 'other'") as caught:
        model(tmp_path, "other")
    assert "m" in caught.value.fix
    with pytest.raises(RepositoryError, match="no model 'm_net'"):
        model(tmp_path, "m_net")


def test_a_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="no folder"):
        models(tmp_path / "missing")


@pytest.mark.parametrize("parity", [1, [], "x", {}, {"agreement": None}, {"agreement": "x"}, {"agreement": 10**400}])
def test_a_model_whose_agreement_is_none_is_listed_without_it(
    parity: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, "m")
    path = tmp_path / "m/hfx.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"parity": {"cpu": parity, "gpu": {"agreement": 0.5}}}))
    assert main(["list", str(tmp_path)]) == 0
    assert " 50.0 %" in capsys.readouterr().out


def test_linting_a_repository_without_models_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(tmp_path)]) == 0
    assert "There is no model in" in capsys.readouterr().err
    fill(tmp_path, "m")
    main(["lint", str(tmp_path)])
    assert "There is no model in" not in capsys.readouterr().err
