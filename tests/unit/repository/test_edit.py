"""Changes of a published model's configurations: exactly the wanted fields, atomically, with a matching manifest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from hfx.errors import LintFailed, ModelCorrupt, ModelMissing, RepositoryError
from hfx.manifest import read_manifest, verify_files
from hfx.repository import edit, lint, parse_config, recover
from hfx.repository.edit import Edit, change, changed_copy, scratch, value
from hfx.repository.staging import stagings
from tests.rigs.files import repositories
from tests.rigs.machine.faults import Killer

THREADS = "parameters.intra_op_thread_count"
INSTANCES = Edit("m_net", "instances", 2, "cpu")
BY = "hfx tune m"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The model m with two files that are large enough to be linked."""
    repository = tmp_path / "repository"
    repository.mkdir()
    repositories.build(repository)
    (repository / "m_net/1/weights.bin").write_bytes(bytes(edit.COPIED_BYTES + 1))
    return repositories.seal(repository)


def snapshot(repository: Path) -> dict[str, bytes]:
    """Return the content of every file of the models, except hfx's own hidden files."""
    paths = (path for path in repository.rglob("*") if path.is_file() and not path.name.startswith(".hfx"))
    return {str(path.relative_to(repository)): path.read_bytes() for path in sorted(paths)}


def config(repository: Path, path: str) -> object:
    return parse_config((repository / path).read_text())


def errors(repository: Path) -> list[str]:
    return [str(found) for found in lint(repository, cores=repositories.CORES) if found.severity == "error"]


def test_only_the_wanted_field_changes_and_the_manifest_fits(published: Path) -> None:
    before, wanted = snapshot(published), config(published, "m_net/config.pbtxt")
    wanted.instance_group[0].count = 2  # type: ignore[attr-defined]
    manifest = change(published, "m", [INSTANCES], BY)
    after = snapshot(published)
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed == {"m/hfx.json", "m_net/config.pbtxt", "m_net/configs/cpu.pbtxt"}
    assert config(published, "m_net/config.pbtxt") == wanted
    assert config(published, "m_net/configs/cpu.pbtxt") == wanted
    assert manifest == read_manifest(published / "m/hfx.json")
    assert verify_files(manifest, published) == []
    assert errors(published) == []
    assert (published / "m_net/1/weights.bin").stat().st_nlink == 1  # the version before is gone


def test_comments_and_the_manifest_record_all_changes(published: Path) -> None:
    change(published, "m", [INSTANCES], BY, {"gain": 1.5})
    manifest = change(published, "m", [Edit("m_net", THREADS, 2, "cpu")], "hfx tune again", {"gain": 1.25})
    comments = [line for line in (published / "m_net/config.pbtxt").read_text().splitlines() if line.startswith("#")]
    assert comments == [
        "# Made by: hfx export tests --name m",
        "# Changed by: hfx tune m (instances 1 -> 2)",
        f"# Changed by: hfx tune again ({THREADS} 4 -> 2)",
    ]
    record = manifest.choices["tuned"]
    assert isinstance(record, dict)
    assert record["settings"] == {"m_net instances": 2, f"m_net {THREADS}": 2}
    assert (record["by"], record["gain"]) == ("hfx tune again", 1.25)
    assert manifest.choices["cpu_runtime"]


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        (Edit("m_net", "instances", 2, "gpu"), {"m_net/configs/gpu.pbtxt"}),
        (Edit("m_net", "instances", 2), {"m_net/config.pbtxt", *(f"m_net/configs/{d}.pbtxt" for d in ("cpu", "gpu"))}),
        (Edit("m_tokenize", "max_queue_delay_microseconds", 500, "gpu"), {"m_tokenize/config.pbtxt"}),
    ],
    ids=["one device", "all devices", "a folder without devices"],
)  # fmt: skip
def test_a_device_has_its_own_configuration_where_there_is_one(published: Path, changes: Edit, paths: set[str]) -> None:
    before = snapshot(published)
    change(published, "m", [changes], BY)
    after = snapshot(published)
    assert {path for path in after if after[path] != before[path]} - {"m/hfx.json"} == paths
    assert value(published, changes.folder, changes.field, changes.device) == changes.value


def test_going_back_gives_the_published_messages_again(published: Path) -> None:
    before = {path: config(published, path) for path in snapshot(published) if path.endswith(".pbtxt")}
    there = [INSTANCES, Edit("m_net", THREADS, 1), Edit("m_net", "max_batch_size", 128)]
    old = [Edit("m_net", "instances", 1, "cpu"), Edit("m_net", "max_batch_size", 64)]
    with pytest.raises(RepositoryError, match=f"has no {THREADS}"):
        change(published, "m", there, BY)  # of the GPU's configuration, too, which has no threads
    change(published, "m", [there[0], there[2]], BY)
    change(published, "m", old, BY)
    again = snapshot(published)
    change(published, "m", old, BY)
    assert snapshot(published) == again, "what is there already changes nothing"
    assert {path: config(published, path) for path in before} == before


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (Edit("m_net", "preferred", 1), "'preferred' can't be changed"),
        (Edit("m_net", "parameters.slots", 1), "has no parameters.slots"),
        (Edit("m", "instances", 2), "'m' has no instances"),
        (Edit("other_net", "instances", 2), "'m' has no folder 'other_net'"),
        (Edit("m_net", "instances", "two"), "instances of 'm_net' can't be 'two'"),
        (Edit("m_net", "max_batch_size", 1 << 40), "max_batch_size of 'm_net' can't be"),
    ],
)
def test_an_edit_of_an_absent_setting_is_refused(published: Path, wrong: Edit, words: str) -> None:
    before = snapshot(published)
    with pytest.raises(RepositoryError, match=words):
        change(published, "m", [INSTANCES, wrong], BY)
    assert snapshot(published) == before


def test_a_change_that_breaks_a_rule_is_not_published(published: Path) -> None:
    before = snapshot(published)
    with pytest.raises(LintFailed, match="HFX409"):
        change(published, "m", [Edit("m_net", "max_batch_size", 8)], BY)
    assert snapshot(published) == before
    assert stagings(published) == []


def test_a_file_that_is_not_as_published_stops_a_change(published: Path) -> None:
    with pytest.raises(ModelMissing, match="no model 'other'"):
        change(published, "other", [], BY)
    (published / "m_net/1/weights.bin").write_bytes(b"other")
    with pytest.raises(ModelCorrupt, match="weights"):
        change(published, "m", [INSTANCES], BY)
    with pytest.raises(ModelCorrupt, match="weights"):
        changed_copy(published, "m", [INSTANCES], published.parent / "copy", BY)


def test_a_link_in_the_place_of_a_file_is_not_followed(published: Path) -> None:
    weights = published / "m_net/1/weights.bin"
    weights.rename(published.parent / "elsewhere.bin")
    weights.symlink_to(published.parent / "elsewhere.bin")
    with pytest.raises(ModelCorrupt, match="weights"):
        changed_copy(published, "m", [], published.parent / "copy", BY)


# Copies


def test_a_changed_copy_shares_large_files_and_leaves_the_original_alone(published: Path) -> None:
    before, target = snapshot(published), published.parent / "copy"
    manifest = changed_copy(published, "m", [INSTANCES], target, BY)
    assert verify_files(manifest, target) == []
    assert errors(target) == []
    assert value(target, "m_net", "instances", "cpu") == 2
    with pytest.raises(RepositoryError, match="File exists"):
        changed_copy(published, "m", [INSTANCES], target, BY)  # never into an existing folder
    assert snapshot(published) == before
    for name, shared in (("m_net/1/weights.bin", True), ("m_net/config.pbtxt", False), ("m_net/1/model.onnx", False)):
        assert (published / name).samefile(target / name) is shared


def test_a_copy_is_whole_where_no_links_can_be_made(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    manifest = changed_copy(published, "m", [INSTANCES], published.parent / "copy", BY)
    assert verify_files(manifest, published.parent / "copy") == []


def test_scratch_is_on_the_same_file_system_and_goes_with_its_block(published: Path) -> None:
    with scratch(published, "m") as folder:
        changed_copy(published, "m", [INSTANCES], folder / "a", BY)
        assert (folder / "a/m_net/1/weights.bin").samefile(published / "m_net/1/weights.bin")
        change(published, "m", [INSTANCES], BY)  # a publication beside it
    assert not folder.exists()
    assert stagings(published) == []


# Crashes: the work is killed before its n-th change of the file system.

WORK = """
from pathlib import Path
from hfx.repository.edit import Edit, change

def work(arm, repository):
    arm()
    change(Path(repository), "m", [Edit("m_net", "instances", 2, "cpu")], "hfx tune m")
"""


def test_a_kill_at_any_step_leaves_the_old_or_the_new_settings_whole(published: Path) -> None:
    instances, steps = [], 0
    template = published.parent / "template"
    published.rename(template)
    with Killer(WORK) as killer:
        for at in range(1, 1000, 12):
            shutil.copytree(template, published)
            changes = killer.kill(at, str(published))
            recover(published)
            assert verify_files(read_manifest(published / "m/hfx.json"), published) == []
            instances.append(value(published, "m_net", "instances", "cpu"))
            shutil.rmtree(published)
            if changes is not None:
                break
            steps += 1
    assert changes is not None
    assert steps > 10
    assert instances == sorted(instances, key=lambda count: count == 2), "once changed, always changed"
    assert instances[-1] == 2
