"""Publishing is atomic: a whole model or nothing, whatever happens in between."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hfx.errors import RepositoryError, StorageFull, UsageError
from hfx.manifest import read_manifest, verify_files, write_manifest
from hfx.repository import Staging, check_target, lint, publish, recover, remove
from hfx.repository.staging import stagings
from tests.rigs.files.manifests import fill, manifest
from tests.rigs.machine.faults import Killer

TREE = Path(__file__).parents[3]


def export(
    repository: Path, *, members: tuple[str, ...] = ("_net",), content: str = "one", replace: bool = False
) -> None:
    with Staging(repository, "m") as staging:
        fill(staging.root, "m", members, content)
        publish(staging, replace)


def snapshot(repository: Path) -> dict[str, bytes | None]:
    """Return every path in the repository with its bytes (None: a folder), without the lock file."""
    paths = (path for path in repository.rglob("*") if path.name != ".hfx-lock")
    return {str(path.relative_to(repository)): None if path.is_dir() else path.read_bytes() for path in sorted(paths)}


def test_a_model_is_published_as_staged_and_nothing_else_is_left(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    with Staging(repository, "m") as staging:
        assert staging.path.parent == tmp_path
        assert [path.name for path in repository.iterdir()] == [".hfx-lock"]
        fill(staging.root)
        published = publish(staging, replace=False)
    assert published == read_manifest(repository / "m" / "hfx.json")
    assert [path.name for path in tmp_path.iterdir()] == ["repository"]
    assert {path.name for path in repository.iterdir()} - {".hfx-lock"} == {"m", "m_net"}
    assert verify_files(read_manifest(repository / "m" / "hfx.json"), repository) == []


def test_staging_for_a_linked_repository_is_beside_the_links_target(tmp_path: Path) -> None:
    (tmp_path / "disk" / "models").mkdir(parents=True)
    (tmp_path / "models").symlink_to(tmp_path / "disk" / "models")
    with Staging(tmp_path / "models", "m") as staging:
        assert staging.path.parent == tmp_path / "disk"
        assert stagings(tmp_path / "models") == [staging.path]


def test_staging_inside_the_repository_is_a_loadable_model_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted, long_named = tmp_path / "mounted", tmp_path / ("r" * 240)
    monkeypatch.setattr(os, "rename", failing(os.rename, 1, OSError(errno.EXDEV, "")))  # as over the edge of a mount
    for repository in (mounted, long_named):
        with Staging(repository, "m") as staging:
            assert staging.path.parent == repository
            assert stagings(repository) == [staging.path]
            assert (staging.path / "config.pbtxt").read_text().startswith('backend: "python"')
            compile((staging.path / "1" / "model.py").read_bytes(), "model.py", "exec")
            assert not [found for found in lint(repository) if found.rule == "HFX109"]
            fill(staging.root)
            publish(staging, replace=False)
        assert {path.name for path in repository.iterdir()} == {".hfx-lock", "m", "m_net"}
        assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_staging_folders_of_repositories_with_similar_names_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    with Staging(tmp_path / "r.hfx-staging-m", "m") as staging:
        assert stagings(tmp_path / "r") == []
        assert stagings(tmp_path / "r.hfx-staging-m") == [staging.path]


@pytest.mark.parametrize(
    ("error", "expected"), [(KeyError(), KeyError), (OSError(errno.ENOSPC, "No space left on device"), StorageFull)]
)
def test_an_error_inside_the_block_leaves_nothing(tmp_path: Path, error: Exception, expected: type[Exception]) -> None:
    def fail() -> None:
        with Staging(tmp_path, "m") as staging:
            fill(staging.root)
            raise error

    with pytest.raises(expected):
        fail()
    assert snapshot(tmp_path) == {}


def test_staged_folders_are_made_by_name(tmp_path: Path) -> None:
    with Staging(tmp_path, "m") as staging:
        assert staging.folder("m_net").is_dir()
        with pytest.raises(RepositoryError, match="folder of the model 'm'"):
            staging.folder("other_net")


def test_an_existing_name_needs_force(tmp_path: Path) -> None:
    export(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(RepositoryError, match="exists") as caught:
        check_target(tmp_path, "m", replace=False)
    assert "--force" in caught.value.fix
    with pytest.raises(RepositoryError, match="exists"):
        export(tmp_path, content="two")
    assert snapshot(tmp_path) == before


def test_force_replaces_and_removes_members_that_are_gone(tmp_path: Path) -> None:
    export(tmp_path, members=("_tokenize", "_net", "_postprocess"))
    export(tmp_path, members=("_tokenize", "_net"), content="two", replace=True)
    assert {path.name for path in tmp_path.iterdir()} - {".hfx-lock"} == {"m", "m_tokenize", "m_net"}
    assert (tmp_path / "m_net/1/data.bin").read_bytes() == b"two" * 100


def test_force_replaces_a_model_whose_folder_was_deleted(tmp_path: Path) -> None:
    export(tmp_path, members=("_net", "_postprocess"))
    shutil.rmtree(tmp_path / "m_postprocess")
    export(tmp_path, content="two", replace=True)
    assert {path.name for path in tmp_path.iterdir()} - {".hfx-lock"} == {"m", "m_net"}


def test_a_link_to_a_model_is_not_replaced(tmp_path: Path) -> None:
    export(tmp_path / "elsewhere")
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "m").symlink_to(tmp_path / "elsewhere" / "m")
    with pytest.raises(RepositoryError, match="not made by hfx"):
        export(tmp_path / "r", replace=True)
    assert (tmp_path / "elsewhere" / "m" / "hfx.json").is_file()


def test_force_never_touches_folders_of_others(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "m_postprocess").mkdir()
    (tmp_path / "m_other").mkdir()
    before = snapshot(tmp_path)
    with pytest.raises(RepositoryError, match="doesn't belong to 'm'"):
        export(tmp_path, members=("_net", "_postprocess"), replace=True)
    assert snapshot(tmp_path) == before
    export(tmp_path, content="two", replace=True)
    assert (tmp_path / "m_postprocess").is_dir()
    assert (tmp_path / "m_other").is_dir()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_a_name_that_hfx_did_not_make_is_refused_even_with_force(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "m")
    with pytest.raises(RepositoryError, match="not made by hfx"):
        export(tmp_path, replace=True)
    with pytest.raises(RepositoryError, match="not made by hfx"):
        check_target(tmp_path, "m", replace=True)


@pytest.mark.parametrize("damage", ["is not JSON", "manifest of 'victim'"])
def test_a_damaged_manifest_gives_no_right_to_any_folder(tmp_path: Path, damage: str) -> None:
    for name in ("victim", "m"):
        fill(tmp_path, name)
    if damage == "is not JSON":
        (tmp_path / "m" / "hfx.json").write_text("{")
    else:
        write_manifest(manifest("victim", folders=("victim", "victim_net")), tmp_path / "m" / "hfx.json")
    before = snapshot(tmp_path)
    with pytest.raises(RepositoryError, match=damage):
        export(tmp_path, replace=True)
    assert snapshot(tmp_path) == before


def other_name(path: Path) -> None:
    write_manifest(manifest("other", folders=("other", "other_net")), path)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda staging: staging.folder("m_tokenize"), "not those of the manifest"),
        (lambda staging: other_name(staging.root / "m" / "hfx.json"), "not those of the manifest"),
        (lambda staging: (staging.root / "m_net" / "link").symlink_to("/"), "is a link"),
    ],
)
def test_staged_files_must_match_the_manifest(tmp_path: Path, spoil: Callable[[Staging], object], reason: str) -> None:
    with Staging(tmp_path, "m") as staging:
        fill(staging.root)
        spoil(staging)
        with pytest.raises(RepositoryError, match=reason):
            publish(staging, replace=False)
    assert snapshot(tmp_path) == {}


def failing(call: Callable[..., object], at: int, error: BaseException) -> Callable[..., object]:
    """Return `call`, except that its `at`-th call fails with `error`."""
    count = 0

    def step(*arguments: object, **options: object) -> object:
        nonlocal count
        count += 1
        if count == at:
            raise error
        return call(*arguments, **options)

    return step


# The first rename tries whether beside is possible.
@pytest.mark.parametrize(
    ("call", "at"), [*(("rename", at) for at in range(2, 9)), *(("fsync", at) for at in (1, 3, 9, 17, 18))]
)
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, ""), StorageFull),
        (OSError(errno.EDQUOT, ""), StorageFull),
        (OSError(errno.EIO, ""), RepositoryError),
        (OSError(errno.EACCES, ""), RepositoryError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
    ids=repr,
)
def test_a_step_that_fails_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, at: int, error: BaseException, expected: type
) -> None:
    export(tmp_path, members=("_net", "_postprocess"))
    before = snapshot(tmp_path)
    monkeypatch.setattr(os, call, failing(getattr(os, call), at, error))
    with pytest.raises(expected):
        export(tmp_path, members=("_net", "_tokenize"), content="two", replace=True)
    monkeypatch.undo()
    assert snapshot(tmp_path) == before
    assert recover(tmp_path) == []


# Crashes: the work is killed before its n-th change of the file system.

WORK = """
from pathlib import Path
from hfx.repository import Staging, publish, recover
from tests.rigs.machine.faults import Killer
from tests.rigs.files.manifests import fill

def work(arm, action, repository):
    if action == "recover":
        arm()
        recover(Path(repository))
        return
    with Staging(Path(repository), "m") as staging:
        fill(staging.root, "m", ("_net", "_tokenize"), "two")
        arm()
        publish(staging, replace=action == "replace")
"""


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with Killer(WORK) as started:
        yield started


def new_state(tmp_path: Path) -> dict[str, bytes | None]:
    with Staging(tmp_path / "wanted", "m") as staging:
        fill(staging.root, "m", ("_net", "_tokenize"), "two")
        publish(staging, replace=False)
    return snapshot(tmp_path / "wanted")


@pytest.mark.parametrize("action", ["create", "replace"])
def test_a_kill_at_any_step_leaves_the_old_or_the_new_model_whole(tmp_path: Path, action: str, killer: Killer) -> None:
    wanted, outcomes = new_state(tmp_path), []
    for at in range(1, 400):
        repository = tmp_path / str(at)
        repository.mkdir()
        (repository / "foreign").mkdir()
        if action == "replace":
            export(repository, members=("_net", "_postprocess"))
        before = snapshot(repository)
        changes = killer.kill(at, action, str(repository))
        recover(repository)
        after = snapshot(repository)
        assert after in (before, {**wanted, "foreign": None}), f"step {at}: neither the old state nor the new one"
        outcomes.append(after == before)
        if changes is not None:
            break
    assert changes is not None
    assert len(outcomes) > 30
    assert outcomes == sorted(outcomes, reverse=True), "once committed, always committed"
    assert not outcomes[-1]


def test_a_kill_during_recovery_is_recovered_from_too(tmp_path: Path, killer: Killer) -> None:
    steps = killer.kill(0, "create", str(tmp_path / "count"))
    assert steps is not None
    template = tmp_path / "template"
    template.mkdir()
    export(template, members=("_net", "_postprocess"))
    before = snapshot(template)
    kills = 0
    for publishing in range(steps // 3, steps, 5):
        for at in range(1, 60, 2):
            repository = tmp_path / f"{publishing}-{at}"
            shutil.copytree(template, repository)
            assert killer.kill(publishing, "replace", str(repository)) is None
            if not any((staging / "journal.json").exists() for staging in stagings(repository)):
                break  # nothing to roll back at this step
            changes = killer.kill(at, "recover", str(repository))
            recover(repository)
            assert snapshot(repository) == before
            if changes is not None:
                break
            kills += 1
    assert kills > 10


def test_recovery_says_what_it_did_and_has_nothing_to_do_twice(tmp_path: Path) -> None:
    assert recover(tmp_path / "missing") == []
    repository = tmp_path / "r"
    for stale in (repository / ".hfx-staging-m-abc", tmp_path / ".r.hfx-staging-m-abc"):
        (stale / "new").mkdir(parents=True)
        assert recover(repository) == [f"deleted the abandoned staging folder {stale.name}"]
        assert recover(repository) == []


def test_a_model_is_removed_with_its_folders_and_without_others(tmp_path: Path) -> None:
    export(tmp_path, members=("_net", "_postprocess"))
    (tmp_path / "m_other").mkdir()
    assert remove(tmp_path, "m") == ("m", "m_net", "m_postprocess")
    assert snapshot(tmp_path) == {"m_other": None}
    with pytest.raises(RepositoryError, match="not made by hfx"):
        remove(tmp_path, "m_other")


def test_a_file_in_place_of_the_repository_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--repository"):
        check_target(tmp_path / "file" / "repository", "m", replace=False)


def test_the_staging_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    code = "import sys\nfrom pathlib import Path\nfrom hfx.repository import Staging\n"
    code += "with Staging(Path(sys.argv[1]), 'm'):\n    print('ready', flush=True)\n    sys.stdin.read()\n"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert recover(tmp_path) == []
        export(tmp_path)
        assert len(stagings(tmp_path)) == 1
        child.kill()
        child.wait()
    assert len(recover(tmp_path)) == 1
    assert not stagings(tmp_path)
