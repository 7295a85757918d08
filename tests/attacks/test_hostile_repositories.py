"""Hostile repositories: the linter reports findings; it neither crashes nor hangs nor changes a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hfx.errors import RepositoryError, UsageError
from hfx.repository import Staging, lint, models, recover
from tests.rigs.files.manifests import instead, link
from tests.rigs.files.repositories import CORES, build

NET = "m_net/1/model.onnx"
PYTHON = "m_tokenize/1/model.py"
CONFIG = "m_tokenize/config.pbtxt"


def replaced(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def half(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


pipe, folder = instead(os.mkfifo), instead(Path.mkdir)
EXTREME = b"max_batch_size: -2147483648 input { dims: [-9223372036854775808] }"
# What is done to which file, and the rule that finds it.
ATTACKS: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "config pipe": (CONFIG, pipe, "HFX102"),
    "config folder": (CONFIG, folder, "HFX102"),
    "config device": (CONFIG, link("/dev/zero"), "HFX102"),
    "config loop": (CONFIG, link("config.pbtxt"), "HFX102"),
    "config outside": (CONFIG, link("/etc/hostname"), "HFX108"),
    "config too large": (CONFIG, replaced(b"#" * (2 << 20)), "HFX102"),
    "config not UTF-8": (CONFIG, replaced(b'name: "\xff"'), "HFX102"),
    "config with nulls": (CONFIG, replaced(b"\0" * 100), "HFX102"),
    "config nested": (CONFIG, replaced(b"input {" * 100_000), "HFX102"),
    "config overflowing": (CONFIG, replaced(b"max_batch_size: 99999999999999999999"), "HFX102"),
    "config repeating a scalar": (CONFIG, replaced(b'name: "a" name: "b"'), "HFX102"),
    "config extreme": (CONFIG, replaced(EXTREME), "HFX303"),
    "onnx pipe": (NET, pipe, "HFX601"),
    "onnx folder": (NET, folder, "HFX601"),
    "onnx device": (NET, link("/dev/zero"), "HFX601"),
    "onnx half": (NET, half, "HFX601"),
    "onnx random": (NET, replaced(bytes(range(256)) * 100), "HFX601"),
    "onnx nested": (NET, replaced(b"\x3a\x7f" * 5000), "HFX601"),
    "python pipe": (PYTHON, pipe, "HFX702"),
    "python device": (PYTHON, link("/dev/zero"), "HFX702"),
    "python nested": (PYTHON, replaced(b"(" * 100_000), "HFX702"),
    "python deep": (PYTHON, replaced(b"x=" + b"-" * 100_000 + b"1"), "HFX702"),
    "python not UTF-8": (PYTHON, replaced(b"\xff\xfe"), "HFX702"),
    "manifest pipe": ("m/hfx.json", pipe, "HFX201"),
    "manifest link": ("m/hfx.json", link("/etc/hostname"), "HFX201"),
    "link to everything": ("m_net/1/root", link("/"), "HFX108"),
    "link to itself": ("m_net/1/loop", link("loop"), "HFX108"),
    "link to its parent": ("m_net/1/parent", link(".."), "HFX204"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_on_a_repository_is_a_finding_and_changes_nothing(tmp_path: Path, name: str) -> None:
    repository = build(tmp_path / "repository")
    file, attack, rule = ATTACKS[name]
    attack(repository / file)
    before = sorted(os.walk(repository))
    assert rule in {finding.rule for finding in lint(repository, cores=CORES)}
    assert sorted(os.walk(repository)) == before


def test_an_ensemble_of_itself_is_no_endless_loop(tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    step = 'step { model_name: "m" input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }'
    tensors = 'input { name: "x" data_type: TYPE_FP32 dims: [1] } output { name: "y" data_type: TYPE_FP32 dims: [1] }'
    (tmp_path / "m/config.pbtxt").write_text(f'platform: "ensemble" {tensors} ensemble_scheduling {{ {step} }}')
    assert {finding.rule for finding in lint(tmp_path)} <= {"HFX414"}


def test_folders_with_odd_names_are_listed_as_foreign(tmp_path: Path) -> None:
    for name in ("a\nb", "a b", "-rf", "ü\u202e", "\udcff"):
        (tmp_path / name).mkdir()
    assert {finding.rule for finding in lint(tmp_path)} == {"HFX101", "HFX106"}
    assert all(entry.foreign for entry in models(tmp_path))


@pytest.mark.parametrize(
    "journal",
    [
        "",
        "{",
        "[]",
        '{"name": "m"}',
        '{"name": "m", "old": ["../victim"], "new": []}',
        '{"name": "m", "old": [], "new": ["victim"]}',
        '{"name": "../m", "old": [], "new": []}',
        '{"name": 1, "old": 2, "new": 3}',
        '{"name": "m", "old": [[]], "new": []}',
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("place", ["repository/.hfx-staging-m-forged", ".repository.hfx-staging-m-forged"])
def test_a_forged_journal_moves_nothing(tmp_path: Path, journal: str, place: str) -> None:
    repository, staging = tmp_path / "repository", tmp_path / place
    for path in (repository / "victim", tmp_path / "victim", staging / "old" / "victim", staging / "new"):
        path.mkdir(parents=True)
    (staging / "journal.json").write_text(journal)
    before = sorted(str(path) for path in tmp_path.rglob("*") if path.name not in (".hfx-lock", "owner.json"))
    with pytest.raises(RepositoryError) as caught:
        recover(repository)
    assert caught.value.fix
    assert sorted(str(path) for path in tmp_path.rglob("*") if path.name not in (".hfx-lock", "owner.json")) == before


def test_links_of_or_in_a_stale_staging_are_not_followed(tmp_path: Path) -> None:
    victim, repository = tmp_path / "victim", tmp_path / "repository"
    victim.mkdir()
    (victim / "file").touch()
    repository.mkdir()
    (repository / ".hfx-staging-m-link").symlink_to(victim)
    (tmp_path / ".repository.hfx-staging-m-link").symlink_to(victim)
    assert recover(repository) == []
    (repository / ".hfx-staging-m-stale").mkdir()
    (repository / ".hfx-staging-m-stale" / "link").symlink_to(victim)
    assert len(recover(repository)) == 1
    assert (victim / "file").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_the_staging_of_another_user_beside_the_repository_brings_no_model(tmp_path: Path) -> None:
    repository, staging = tmp_path / "repository", tmp_path / ".repository.hfx-staging-m-forged"
    repository.mkdir()
    (staging / "old" / "m").mkdir(parents=True)
    (staging / "journal.json").write_text('{"name": "m", "old": ["m"], "new": []}')
    os.chown(staging, 12345, 12345)
    assert recover(repository) == []
    assert not (repository / "m").exists()
    assert (staging / "old" / "m").exists()


@pytest.mark.parametrize("name", ["../m", "", ".", "a/b", "m_net", "M", "m" * 500, "\0"])
def test_an_invalid_model_name_gets_no_staging_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        Staging(tmp_path, name)
    assert list(tmp_path.iterdir()) == []
