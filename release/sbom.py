"""The software bill of materials of a wheel, as CycloneDX 1.6, which setup.py puts into `.dist-info/sboms/` (PEP 770).

It lists the packages that pyproject.toml requires, the native libraries, and what compiled them; hfx contains no code
of others. It names neither times nor folders of the machine, so that each build writes the same bytes. This file
uses only the standard library, because setup.py runs it before hfx is installed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from email import message_from_string
from typing import Any

FILE = "sboms/hfx.cdx.json"  # in the folder .dist-info
LIBRARY, LIBRARIES = "hfx/native/libhfx_operators.so", re.compile(r"hfx/native/libhfx_operators\w*\.so")
LIBC = "glibc"
PROPERTY = "hfx:requirement"
FORMAT = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?\s*(?P<versions>[^;]*)(?P<marker>.*)", re.DOTALL)
Component = dict[str, Any]


def document(metadata: str, libraries: Mapping[str, bytes], compiler: str) -> str:
    """Return the document of a wheel with the core metadata `metadata`.

    `libraries` are the native libraries: name in the wheel -> content. `compiler` is the requirement of the package
    that compiled them, such as ziglang==0.17.1.
    """
    headers = message_from_string(metadata)
    licenses = [{"expression": headers["License-Expression"]}]
    root = {**_package(headers["Name"], headers["Version"]), "licenses": licenses}
    packages = _packages(metadata)
    native = [*_native(libraries, headers["Version"], licenses), _compiler(compiler)] if libraries else []
    used = [component["bom-ref"] for component in (*packages, *native) if component["scope"] != "excluded"]
    edges = [{"ref": root["bom-ref"], "dependsOn": [ref for ref in used if ref != LIBC]}]
    edges += [{"ref": library, "dependsOn": [LIBC]} for library in libraries]
    content = {**FORMAT, "metadata": {"component": root}, "components": [*packages, *native], "dependencies": edges}
    return json.dumps(content, indent=2) + "\n"


def _package(name: str, version: str) -> Component:
    """Return the component of a package; `version` is empty if it is not pinned."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    purl = f"pkg:pypi/{name}" + f"@{version}" * bool(version)
    return {"type": "library", "bom-ref": purl, "name": name, **({"version": version} if version else {}), "purl": purl}


def _packages(metadata: str) -> list[Component]:
    """Return a component for each package in `metadata`, sorted by name, with all its requirements."""
    requirements: dict[str, list[str]] = {}
    for line in _requirements(metadata):
        requirements.setdefault(_parsed(line)["name"].lower(), []).append(line)
    return [_required(name, lines) for name, lines in sorted(requirements.items())]


def _required(name: str, lines: list[str]) -> Component:
    versions = {_parsed(line)["versions"].strip() for line in lines}
    version = versions.pop() if len(versions) == 1 else ""
    pinned = version.removeprefix("==") if re.fullmatch(r"==[\w.+!-]+", version) else ""
    always = any("extra ==" not in _parsed(line)["marker"] for line in lines)
    properties = [{"name": PROPERTY, "value": line} for line in lines]
    return {**_package(name, pinned), "scope": "required" if always else "optional", "properties": properties}


def _requirements(metadata: str) -> list[str]:
    """Return the requirements in `metadata`, without those of hfx's extras on each other."""
    headers = message_from_string(metadata)
    lines = headers.get_all("Requires-Dist", [])
    return [line for line in lines if _parsed(line)["name"].lower() != headers["Name"].lower()]


def _parsed(requirement: str) -> dict[str, str]:
    match = REQUIREMENT.fullmatch(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} is no requirement")
    return match.groupdict()


def _native(libraries: Mapping[str, bytes], version: str, licenses: list[dict[str, str]]) -> list[Component]:
    """Return the components of the native libraries and of what they link."""
    own: list[Component] = [
        {
            "type": "library", "bom-ref": name, "name": name, "version": version, "scope": "required",
            "description": "C++ of hfx (hfx/native), compiled for this wheel. It links the C library only.",
            "hashes": _hashes(content), "licenses": licenses,
        }
        for name, content in libraries.items()
    ]  # fmt: skip
    libc = {
        "type": "library", "bom-ref": LIBC, "name": LIBC, "scope": "required",
        "description": "The C library of the system, 2.17 or later. It is not in the wheel.",
    }  # fmt: skip
    return [*own, libc]


def _hashes(content: bytes) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]


def _compiler(requirement: str) -> Component:
    name, _, version = requirement.partition("==")
    text = "Its clang compiles hfx/native. It is not in the wheel."
    return {**_package(name, version), "scope": "excluded", "description": text}


def check(content: bytes, metadata: str, libraries: Mapping[str, bytes]) -> None:
    """Raise ValueError unless `content` is a CycloneDX document that describes the wheel.

    Its subject must have the name and the version of `metadata`, its components the same requirements, and the native
    `libraries` (name -> content) the hashes that are stated. References must have targets.
    """
    try:
        sbom = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(sbom, dict) or any(sbom.get(key) != value for key, value in FORMAT.items()):
        raise ValueError("it is not a document of CycloneDX 1.6")
    described = sbom.get("metadata")
    if not isinstance(described, dict) or described.keys() != {"component"}:
        raise ValueError("its metadata must have the component that it describes, and no times or tools")
    [root] = _objects([described["component"]])
    components = _objects(sbom.get("components"))
    headers = message_from_string(metadata)
    if (root.get("name"), root.get("version")) != (headers["Name"], headers["Version"]):
        raise ValueError("it describes another package or version")
    _check_references([root, *components], _objects(sbom.get("dependencies")))
    stated = [item.get("value") for component in components for item in _objects(component.get("properties", []))]
    if sorted(map(str, stated)) != sorted(_requirements(metadata)):
        raise ValueError("its requirements are not those of METADATA")
    _check_libraries(components, libraries)
    if b'"/' in content:
        raise ValueError("it names a folder of the machine that built it")


def _check_references(components: list[Component], edges: list[Component]) -> None:
    for component in components:
        if component.get("type") != "library" or not all(
            isinstance(component.get(key), str) for key in ("name", "bom-ref")
        ):
            raise ValueError("a component has no name, no bom-ref, or another type than library")
    refs = [component["bom-ref"] for component in components]
    if len(set(refs)) != len(refs):
        raise ValueError("a bom-ref is repeated")
    used = [ref for edge in edges for ref in (edge.get("ref"), *_texts(edge.get("dependsOn")))]
    if lost := [str(ref) for ref in used if ref not in refs]:
        raise ValueError(f"no component has the bom-ref {lost[0]}")


def _check_libraries(components: list[Component], libraries: Mapping[str, bytes]) -> None:
    stated = {ref: each.get("hashes") for each in components if LIBRARIES.fullmatch(ref := each["bom-ref"])}
    if stated != {name: _hashes(content) for name, content in libraries.items()}:
        raise ValueError("the hashes of the native libraries are others")


def _objects(value: object) -> list[Component]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("it has a value of another type than CycloneDX 1.6 allows")
    return value


def _texts(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("it has a value of another type than CycloneDX 1.6 allows")
    return value
