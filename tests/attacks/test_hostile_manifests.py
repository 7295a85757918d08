"""Hostile hfx.json files: each is refused by a typed error with the place of the problem and a fix."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from hfx.errors import RepositoryError
from hfx.manifest import MAX_BYTES, parse_manifest, read_manifest, to_json
from tests.rigs.files.manifests import manifest

ENTRY = {"sha256": "b" * 64, "size": 1}


def changed(field: str, value: Any) -> str:
    """Return the JSON of a sound manifest with one member, named by a dotted path, replaced."""
    data = json.loads(to_json(manifest()))
    *parents, last = field.split(".")
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value
    return json.dumps(data)


def refused(text: str) -> RepositoryError:
    with pytest.raises(RepositoryError) as caught:
        parse_manifest(text, "repository/m/hfx.json")
    assert caught.value.message.startswith("repository/m/hfx.json")
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("value", [0, 2, -1, 1.0e9, "1", None, [], {}, "x" * 10_000, True, 1.0])
def test_an_unknown_format_is_named(value: object) -> None:
    assert len(refused(changed("format", value)).message) < 200


PATHS = [
    *("/etc/passwd", "../m/x", "m/../../x", "m/..", "m/./x", "m//x", "m/", "m", "./m/x", "", " ", "m\\..\\x"),
    *("other/x", "m_postprocess/x", "m/hfx.json"),  # not of its folders, or itself
    *("m/\0", "m/a\nb", "m/a\u202eb", "\ud800"),  # U+202E: right-to-left override
    "m/u\u0308",  # not in normal form C
    "m/" + "x" * 5000,
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    refused(changed("files", {path: ENTRY}))


ENTRIES = [
    *({"more": 1}, {"size": -1}, {"size": True}, {"size": 1.5}, {"size": 2**70}),
    *({"sha256": "B" * 64}, {"sha256": "b" * 63}, {"sha256": "٣" * 64}),
]
VALUES: dict[str, list[Any]] = {
    "name": ["other", "../m", "M", "", None, "m_net"],
    "task": ["mining", ["text-classification"]],
    "folders": [[], ["m_net"], ["m", "m"], ["m", "victim"], ["m", "m/../victim"], "m", {"m": 1}],
    "files": [[], {"m/x": {}}, *({"m/x": ENTRY | entry} for entry in ENTRIES)],
    "source": ["org/model"],
    "source.id": [""],
    "source.revision": [7],
    "source.more": [7],
    "precision": [{"cpu": "fp32"}],
    "precision.cpu": [False],
    "triton.minimum": ["24.10; rm -rf /", "٢٤.١٠"],
    "opset": ["17", True, 0],
    "ir": [None],
    "created": ["2025-01-31T12:00:00", "2025-01-31T12:00:00+02:00", "now"],
    "versions": [{"onnx": 1.17}, {"on\x1bnx": "1"}],
    "parity": [[1], {"x": "\ud800"}],
    "choices": [None],
    "unknown": [1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in VALUES.items() for value in values])
def test_a_wrong_value_is_refused_with_its_field(field: str, value: object) -> None:
    assert field.split(".")[0] in refused(changed(field, value)).message


@pytest.mark.parametrize("field", list(json.loads(to_json(manifest()))))
def test_each_missing_manifest_field_is_named(field: str) -> None:
    data = json.loads(to_json(manifest()))
    del data[field]
    assert f"{field!r}" in refused(json.dumps(data)).message


TEXTS = [
    *("", "null", "[]", "1", '"hfx"', "{", "{}", "\ufeff{}"),
    *('{"format": 1}', '{"format": 1, "format": 1}', '{"format": ' + "9" * 5000 + "}"),
    *("[" * 100_000, '{"a":' * 100_000),
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_is_not_a_manifest_is_refused(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_that_json_does_not_have_are_refused(number: str) -> None:
    refused(changed("parity", {"x": "HERE"}).replace('"HERE"', number))


def test_deeply_nested_parity_figures_are_refused() -> None:
    nested: object = 1
    for _ in range(100):
        nested = [nested]
    assert "nested" in refused(changed("parity", {"x": nested})).message


def test_a_path_listed_twice_is_refused() -> None:
    text = changed("files", {"m/x": ENTRY, "m/y": ENTRY}).replace("m/y", "m/x")
    assert "twice" in refused(text).message


@pytest.mark.parametrize("reason", ["larger than", "not UTF-8"])
def test_a_manifest_that_is_too_large_or_not_utf8_is_not_parsed(tmp_path: Path, reason: str) -> None:
    (tmp_path / "hfx.json").write_bytes(b" " * (MAX_BYTES + 1) if reason == "larger than" else b'{"name": "\xff"}')
    with pytest.raises(RepositoryError, match=reason):
        read_manifest(tmp_path / "hfx.json")


def test_links_pipes_and_folders_are_not_read(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_text(to_json(manifest()))
    link, pipe, folder = tmp_path / "link", tmp_path / "pipe", tmp_path / "folder"
    link.symlink_to(good)
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (link, pipe, folder, tmp_path / "missing", good / "below"):
        with pytest.raises(RepositoryError) as caught:
            read_manifest(path)
        assert str(path) in caught.value.message


def test_every_truncation_of_a_good_manifest_is_refused() -> None:
    text = to_json(manifest()).rstrip()
    for end in range(len(text)):
        refused(text[:end])
