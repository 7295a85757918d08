"""The SBOM of a wheel: what it lists, and that a document which does not describe the wheel is found."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from release.sbom import LIBRARY, PROPERTY, check, document

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
LIBRARIES = {LIBRARY: b"\x7fELF", LIBRARY.replace(".so", "_aarch64.so"): b"\x7fELF too"}


def metadata() -> str:
    """Return the core metadata of the project, with requirements as setuptools writes them."""
    lines = [*PROJECT["dependencies"]]
    for extra, requirements in EXTRAS.items():
        for line in requirements:
            text, _, marker = line.partition(";")
            condition = f"({marker.strip()}) and " if marker else ""
            lines.append(f'{text.strip()}; {condition}extra == "{extra}"')
    headers = {"Name": "hfx", "Version": PROJECT["version"], "License-Expression": PROJECT["license"]}
    texts = [f"{key}: {value}" for key, value in headers.items()] + [f"Requires-Dist: {line}" for line in lines]
    return "\n".join(texts) + "\n\nRequires-Dist: not-a-header\n"


def parsed(libraries: dict[str, bytes] = LIBRARIES) -> dict[str, Any]:
    return dict(json.loads(document(metadata(), libraries, "ziglang==0.17.1")))


def test_each_package_of_pyproject_is_a_component_with_its_requirements() -> None:
    lines = [*PROJECT["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    names = {Requirement(line).name.lower() for line in lines} - {"hfx"}
    packages = {item["name"]: item for item in parsed()["components"] if "properties" in item}
    assert {name.lower() for name in packages} == names
    required = {name for name, item in packages.items() if item["scope"] == "required"}
    assert required == {Requirement(line).name for line in PROJECT["dependencies"]}
    assert packages["sentencepiece"]["purl"] == "pkg:pypi/sentencepiece@0.2.1"
    [typer] = (line for line in PROJECT["dependencies"] if line.startswith("typer"))
    assert packages["typer"]["properties"] == [{"name": PROPERTY, "value": typer}]


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_has_its_hash_links_libc_and_names_its_compiler(library: str) -> None:
    components = {item["bom-ref"]: item for item in parsed()["components"]}
    digest = hashlib.sha256(LIBRARIES[library]).hexdigest()
    assert components[library]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert components["pkg:pypi/ziglang@0.17.1"]["scope"] == "excluded"
    edges = {edge["ref"]: edge["dependsOn"] for edge in parsed()["dependencies"]}
    assert edges[library] == ["glibc"]
    assert library in edges[f"pkg:pypi/hfx@{PROJECT['version']}"]


def test_a_wheel_without_the_libraries_lists_neither_them_nor_their_compiler() -> None:
    components = {item["name"] for item in parsed({})["components"]}
    assert not components & {LIBRARY, "glibc", "ziglang"}
    check(json.dumps(parsed({})).encode(), metadata(), {})


def test_a_document_describes_its_wheel() -> None:
    check(document(metadata(), LIBRARIES, "ziglang==0.17.1").encode(), metadata(), LIBRARIES)


def without_component(sbom: dict[str, Any]) -> None:
    del sbom["components"][0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sbom: sbom.update(specVersion="1.5"), "not a document of CycloneDX"),
        (lambda sbom: sbom["metadata"].update(timestamp="2026-11-28T00:00:00Z"), "no times"),
        (lambda sbom: sbom["metadata"]["component"].update(version="9"), "another package or version"),
        (without_component, "no component has the bom-ref|requirements"),
        (lambda sbom: sbom["components"][0].update(properties=[]), "requirements"),
        (lambda sbom: sbom["components"].append(sbom["components"][0]), "repeated"),
        (lambda sbom: sbom["components"][0].pop("name"), "no name"),
        (lambda sbom: sbom["components"][0].update({"bom-ref": ["a"]}), "no bom-ref"),
        (lambda sbom: sbom["dependencies"][0]["dependsOn"].append("lost"), "no component has the bom-ref lost"),
        (lambda sbom: sbom["dependencies"][0].update(dependsOn={"a": 1}), "another type"),
        (lambda sbom: sbom.update(components=["text"]), "another type"),
        (lambda sbom: sbom.update(components=None), "another type"),
        (lambda sbom: sbom.update(metadata=[]), "its metadata"),
        (lambda sbom: sbom["metadata"].update(component="hfx"), "another type"),
        (lambda sbom: sbom["components"][0].update(description="/home/builder"), "a folder"),
    ],
)
def test_a_document_of_another_wheel_is_found(change: Callable[[dict[str, Any]], None], reason: str) -> None:
    sbom = parsed()
    change(sbom)
    with pytest.raises(ValueError, match=reason):
        check(json.dumps(sbom).encode(), metadata(), LIBRARIES)


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\xff", b"[]", b"null", b"1" * 10_000])
def test_content_that_is_no_document_is_found(content: bytes) -> None:
    with pytest.raises(ValueError, match="it is not"):
        check(content, metadata(), LIBRARIES)


@pytest.mark.parametrize(
    "libraries", [{}, {LIBRARY: LIBRARIES[LIBRARY]}, {**LIBRARIES, LIBRARY: b"\x7fELF of another"}]
)
def test_another_library_is_found(libraries: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match="the hashes of"):
        check(json.dumps(parsed()).encode(), metadata(), libraries)
