"""Weight files that are truncated, damaged, misnamed or malicious are refused by name, and their code never runs."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hfx.errors import CheckpointCorrupt, CheckpointUnsafe, SourceError
from hfx.exporter.source import open_checkpoint
from tests.attacks.damage import edit_tensors, load, pickle_weights, refused

# Where a file of `size` bytes with a header of `header` bytes ends.
CUTS: dict[str, Callable[[int, int], int]] = {
    "nothing": lambda header, size: 0,
    "7 of the 8 bytes of the length": lambda header, size: 7,
    "no header": lambda header, size: 8,
    "a byte of the header": lambda header, size: 9,
    "all but a byte of the header": lambda header, size: header + 7,
    "no tensor": lambda header, size: header + 8,
    "a byte of a tensor": lambda header, size: header + 9,
    "all but a byte": lambda header, size: size - 1,
    "a byte more": lambda header, size: size + 1,
}


HEADS = ("classifier", "bert.pooler")


class Malice:
    """An object that makes a folder when pickle itself unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def shard(folder: Path, index: object) -> Path:
    """Turn model.safetensors into the shard a.safetensors of `index`."""
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    file = folder / "model.safetensors.index.json"
    file.write_text(json.dumps(index))
    return file


def weight_map(folder: Path, file: str) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {"metadata": {}, "weight_map": dict.fromkeys(load_file(folder / "model.safetensors"), file)}


@pytest.mark.parametrize("cut", CUTS)
def test_safetensors_of_another_length_are_corrupt(folder: Path, cut: str) -> None:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    (header,) = struct.unpack("<Q", content[:8])
    file.write_bytes((content + b"x")[: CUTS[cut](header, len(content))])
    refused(CheckpointCorrupt, file, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    "content",
    [
        b"\0" * 5000,
        b"\xff" * 5000,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2**63) + b"{}",
    ],
    ids=["zeros", "ones", "no tensor", "no object", "endless header"],
)
def test_a_file_that_is_no_safetensors_is_corrupt(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refused(CheckpointCorrupt, folder / "model.safetensors", lambda: open_checkpoint(str(folder)))


# Without those in the name and value of a field of __metadata__, which nothing reads.
@pytest.mark.parametrize("position", [at for at in range(0, 160, 7) if at not in (28, 35)])
def test_a_flipped_bit_in_the_header_is_corrupt(folder: Path, position: int) -> None:
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[position] ^= 1 << (position % 7)
    file.write_bytes(content)
    refused(CheckpointCorrupt, file, lambda: load(folder))


def test_a_git_lfs_pointer_is_told_apart(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    message = refused(CheckpointCorrupt, folder / "model.safetensors", lambda: open_checkpoint(str(folder)))
    assert "LFS" in message


def test_a_checkpoint_without_weights_is_corrupt(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(CheckpointCorrupt, folder, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: {name.replace("query", "kwery"): value for name, value in t.items()}, "query.weight"),
        (lambda t: {"model." + name: value for name, value in t.items()}, "lacks"),
        (lambda t: {name: value for name, value in t.items() if "classifier" not in name}, "classifier.weight"),
        (lambda t: {name: value for name, value in t.items() if "pooler" not in name}, "pooler.dense.weight"),
        (lambda t: t | {"classifier.weight": torch.zeros(7, 32)}, "classifier.weight"),
        (lambda t: t | {"classifier.weight": torch.zeros(32, 2)}, "classifier.weight"),
        (lambda t: t | {"classifier.weight": torch.zeros(64)}, "classifier.weight"),
        (lambda t: t | {"classifier.weight": torch.zeros(2, 32, dtype=torch.int64)}, "classifier.weight"),
    ],
    ids=[
        "renamed",
        "all renamed",
        "missing",
        "no pooler",
        "other shape",
        "transposed",
        "other rank",
        "integers",
    ],
)
def test_tensors_that_do_not_fit_are_corrupt(folder: Path, change: Any, named: str) -> None:
    edit_tensors(folder, change)
    assert named in refused(CheckpointCorrupt, folder / "model.safetensors", lambda: load(folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["classifier.bias", "bert.embeddings.word_embeddings.weight"])
def test_a_value_that_is_not_finite_is_corrupt(folder: Path, name: str, value: float) -> None:
    def poison(tensors: dict[str, Any]) -> dict[str, Any]:
        tensors[name].view(-1)[-1] = value
        return tensors

    edit_tensors(folder, poison)
    assert name in refused(CheckpointCorrupt, folder / "model.safetensors", lambda: load(folder))


def test_a_value_beyond_float32_is_corrupt(folder: Path) -> None:
    edit_tensors(folder, lambda t: t | {"classifier.bias": torch.tensor([0.0, 1e300], dtype=torch.float64)})
    assert "classifier.bias" in refused(CheckpointCorrupt, "not finite", lambda: load(folder))


def test_the_head_of_another_task_is_corrupt(folder: Path) -> None:
    message = refused(CheckpointCorrupt, folder / "model.safetensors", lambda: load(folder, "question-answering"))
    assert "qa_outputs" in message


def test_sharded_float16_weights_without_head_and_pooler_give_embeddings(folder: Path) -> None:
    edit_tensors(folder, lambda t: {name: value.half() for name, value in t.items() if not name.startswith(HEADS)})
    shard(folder, weight_map(folder, "a.safetensors"))
    load(folder, "feature-extraction")


def test_a_damaged_single_file_is_not_hidden_by_good_shards(folder: Path) -> None:
    (folder / "a.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors.index.json").write_text(json.dumps(weight_map(folder, "a.safetensors")))
    (folder / "model.safetensors").write_bytes(b"junk")
    refused(CheckpointCorrupt, folder / "model.safetensors", lambda: open_checkpoint(str(folder)))


UNSAFE_SHARDS = ("../a.safetensors", "/a.safetensors", "x/../../a.safetensors", "b/a.safetensors", "..")
NO_SHARDS = ("", "gone.safetensors", "config.json", "a.bin", "a\0.safetensors", "a" * 300 + ".safetensors", 1)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        *(({"metadata": {}, "weight_map": {"x": name}}, CheckpointUnsafe) for name in UNSAFE_SHARDS),
        *(({"metadata": {}, "weight_map": {"x": name}}, CheckpointCorrupt) for name in NO_SHARDS),
        *((content, CheckpointCorrupt) for content in ({}, [], {"weight_map": []}, {"weight_map": {}})),
        ({"weight_map": {"x": "a.safetensors"}}, CheckpointCorrupt),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_index_that_leaves_the_folder_or_names_no_shards_is_refused(
    folder: Path, content: object, kind: type[SourceError]
) -> None:
    index = shard(folder, content)
    refused(kind, index, lambda: open_checkpoint(str(folder)))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_loads(folder: Path, zipped: bool) -> None:
    pickle_weights(folder, lambda t: t, _use_new_zipfile_serialization=zipped)
    load(folder)


def test_pickled_shards_load(folder: Path) -> None:
    index = weight_map(folder, "a.bin")
    pickle_weights(folder, lambda t: t).rename(folder / "a.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    load(folder)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(folder: Path, tmp_path: Path, zipped: bool) -> None:
    marker = tmp_path / "ran"
    file = pickle_weights(folder, lambda t: t | {"x": Malice(marker)}, _use_new_zipfile_serialization=zipped)
    refused(CheckpointUnsafe, file, lambda: load(folder))
    assert not marker.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_with_code_is_refused_and_not_run(folder: Path, tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Malice(marker), protocol) + b"\0" * 200_000)
    refused(CheckpointUnsafe, folder / "pytorch_model.bin", lambda: load(folder))
    assert not marker.exists()


def test_the_malicious_pickle_runs_when_python_unpickles_it(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Malice(tmp_path / "ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda t: t | {"x": torch.nn.Linear(2, 2)}, CheckpointUnsafe),
        (lambda t: [1, t], CheckpointCorrupt),
        (lambda t: t | {"x": "text"}, CheckpointCorrupt),
    ],
    ids=["a module", "a list", "a text"],
)
def test_a_pickle_that_is_no_table_of_tensors_is_refused(folder: Path, change: Any, kind: type[SourceError]) -> None:
    file = pickle_weights(folder, change)
    refused(kind, file, lambda: load(folder))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_truncated_pickle_is_corrupt(folder: Path, share: float, zipped: bool) -> None:
    file = pickle_weights(folder, lambda t: t, _use_new_zipfile_serialization=zipped)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    refused(CheckpointCorrupt, file, lambda: load(folder))
