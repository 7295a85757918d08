"""An error of any system call leaves the old or the new model, and the next publication succeeds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hfx.manifest import read_manifest, verify_files
from hfx.repository import recover
from hfx.repository.edit import Edit, change, value
from hfx.repository.publish import remove
from hfx.repository.staging import stagings
from tests.rigs.files import repositories
from tests.rigs.machine.faults import Ended, Faults
from tests.rigs.machine.tiers import full
from tests.unit.repository.test_publish import export, new_state, snapshot

WORK = """
from pathlib import Path
from hfx.repository import Staging, publish, recover
from hfx.repository.publish import remove
from tests.rigs.files.manifests import fill

def work(arm, action, repository):
    arm()
    if action == "remove":
        remove(Path(repository), "m")
        return
    with Staging(Path(repository), "m") as staging:
        fill(staging.root, "m", ("_net", "_tokenize"), "two")
        publish(staging, replace=action == "replace")
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [11, full(1)])
@pytest.mark.parametrize("action", ["create", "replace", "remove"])
def test_an_error_at_any_call_leaves_the_old_or_the_new_model(
    action: str, step: int, memory: Path, tmp_path: Path
) -> None:
    wanted = new_state(tmp_path) if action != "remove" else {}
    home = memory / "home"
    repository = home / "repository"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(home, ignore_errors=True)
        repository.mkdir(parents=True)
        if action != "create":
            export(repository, members=("_net", "_postprocess"))
        prepare.before = snapshot(repository)  # type: ignore[attr-defined]
        return action, str(repository)

    def check(ended: Ended) -> None:
        before = prepare.before  # type: ignore[attr-defined]
        recover(repository)
        after = snapshot(repository)
        after.pop(".hfx-probe", None)  # it could not be deleted, and does no harm
        assert after == (before if ended.error else wanted) or (ended.fired > 1 and after == wanted)
        if after == before:
            again()
        assert snapshot(repository) == wanted
        assert not stagings(repository)
        assert {path.name for path in home.iterdir()} == {"repository"}

    def again() -> None:
        if action == "remove":
            remove(repository, "m")
        else:
            export(repository, members=("_net", "_tokenize"), content="two", replace=action == "replace")

    with Faults(WORK) as faults:
        print(action, faults.sweep(prepare, check, home, step))


CHANGE = """
from pathlib import Path
from hfx.repository.edit import Edit, change

def work(arm, repository):
    arm()
    change(Path(repository), "m", [Edit("m_net", "instances", 2, "cpu")], "hfx tune m")
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [97, full(1)])
def test_an_error_at_any_call_leaves_the_old_or_the_new_settings(step: int, memory: Path) -> None:
    template, home = memory / "template", memory / "home"
    template.mkdir()
    repositories.build(template)
    repository = home / "repository"

    def prepare() -> tuple[str, ...]:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(template, repository)
        return (str(repository),)

    def check(ended: Ended) -> None:
        recover(repository)
        assert verify_files(read_manifest(repository / "m/hfx.json"), repository) == []
        count = value(repository, "m_net", "instances", "cpu")
        assert ended.fired > 1 or count == (1 if ended.error else 2)
        change(repository, "m", [Edit("m_net", "instances", 2, "cpu")], "hfx tune m")
        assert value(repository, "m_net", "instances", "cpu") == 2
        assert {path.name for path in home.iterdir()} == {"repository"}

    with Faults(CHANGE) as faults:
        print("settings", faults.sweep(prepare, check, home, step))
