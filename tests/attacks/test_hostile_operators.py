"""Native libraries that are damaged, missing or foreign, and engine.json files that do not fit them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.native import library
from hfx.native.build import LIBRARY
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.errors import ModelDamaged, ProviderMissing
from tests.attacks.damage import DROPPED
from tests.rigs.engine import engine_toys as toys
from tests.rigs.machine.processors import HAS_NATIVE

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="native operators are not built, or don't run here")
MACHINE = 18  # where an ELF file says its processor
AARCH64 = b"\xb7\x00"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy model with the library beside it."""
    folder = toys.write_decoder(tmp_path_factory.mktemp("engine") / "toy")
    shutil.copyfile(library(), folder / LIBRARY)
    return edit(seal(folder), runtime="native")


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "toy"))


def edit(folder: Path, **fields: Any) -> Path:
    file = folder / "engine.json"
    facts = json.loads(file.read_text()) | fields
    file.write_text(json.dumps({name: value for name, value in facts.items() if value is not DROPPED}))
    return folder


def seal(folder: Path, **fields: Any) -> Path:
    """Write the library's present facts into engine.json, except for `fields`."""
    digest = hashlib.sha256((folder / LIBRARY).read_bytes()).hexdigest()
    operators = {"file": LIBRARY, "sha256": digest, **fields}
    return edit(folder, operators={name: value for name, value in operators.items() if value is not DROPPED})


def replace(folder: Path, change: Callable[[bytes], bytes]) -> Path:
    content = (folder / LIBRARY).read_bytes()
    (folder / LIBRARY).write_bytes(change(content))
    return folder


def served_in_its_place(folder: Path, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """Check that ONNX Runtime serves `folder` and logs `reason` once.

    The native operators are refused when requested by name.
    """
    with Engine.open(folder, slots=2, threads=1) as engine:
        assert engine.runtime == "onnxruntime"
        assert engine.submit(Request((3, 5), Settings(max_tokens=5))).result(10)[0].ids == toys.greedy((3, 5), 5)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "in the place of native operators" in record.getMessage()
    assert reason in record.getMessage()
    with pytest.raises(ProviderMissing) as caught:
        Engine.open(folder, slots=2, threads=1, runtime="native").close()
    assert reason in str(caught.value)


def test_the_engine_loads_the_library_in_its_own_folder(folder: Path) -> None:
    with Engine.open(folder, slots=2, threads=1) as engine:
        assert engine.runtime == "native"
        assert engine.submit(Request((3, 5), Settings(max_tokens=5))).result(10)[0].ids == toys.greedy((3, 5), 5)
        assert str(folder / LIBRARY) in Path("/proc/self/maps").read_text()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "half": lambda content: content[: len(content) // 2],
    "the last byte lost": lambda content: content[:-1],
    "a bit turned": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "longer": lambda content: content + b"\0",
    "a page of a web server": lambda content: b"<html><body>404</body></html>",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_not_loaded_and_onnxruntime_serves(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    served_in_its_place(replace(folder, DAMAGES[damage]), "is not the file that was exported", caplog)
    assert str(folder / LIBRARY) not in Path("/proc/self/maps").read_text()


OTHERS: dict[str, Callable[[bytes], bytes]] = {
    "for another processor": lambda content: content[:MACHINE] + AARCH64 + content[MACHINE + 2 :],
    "for another system": lambda content: b"\xcf\xfa\xed\xfe" + content[4:],
    "a text": lambda content: b"no library",
    "a library of something else": lambda content: content.replace(b"hfx_native_kernels", b"hfx_native_nothing"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_library_of_another_system_is_replaced_by_onnxruntime(
    folder: Path, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    served_in_its_place(seal(replace(folder, OTHERS[other])), f"{LIBRARY} can't be loaded", caplog)


LIES: list[tuple[dict[str, Any], str]] = [
    ({"operators": None}, "runtime is 'native'"),
    ({"operators": DROPPED}, "runtime is 'native'"),
    ({"operators": []}, "operators is []"),
    ({"operators": LIBRARY}, f"operators is '{LIBRARY}'"),
    ({"operators": {}}, "operators.file is null"),
]
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"file": f"../toy/{LIBRARY}"}, "operators.file is '../toy/"),
    ({"file": f"/tmp/{LIBRARY}"}, "operators.file is '/tmp/"),
    ({"file": ".."}, "operators.file"),
    ({"file": ""}, "operators.file is ''"),
    ({"file": "a\0b"}, "operators.file"),
    ({"file": ["a"]}, "operators.file is ['a']"),
    ({"file": DROPPED}, "operators.file is null"),
    ({"file": "gone.so"}, "gone.so is missing (operators.file of engine.json)"),
    ({"sha256": 5}, "operators.sha256 is 5"),
    ({"sha256": ""}, "operators.sha256 is ''"),
    ({"sha256": None}, "operators.sha256 is null"),
    ({"sha256": ["a"]}, "operators.sha256 is ['a']"),
    ({"sha256": DROPPED}, "operators.sha256 is null"),
]


@pytest.mark.parametrize(("fields", "named"), LIES, ids=[named for _, named in LIES])
def test_invalid_operators_in_engine_json_are_named(folder: Path, fields: dict[str, Any], named: str) -> None:
    refused(edit(folder, **fields), named)


@pytest.mark.parametrize(("fields", "named"), FIELDS, ids=[named for _, named in FIELDS])
def test_an_invalid_field_of_the_operators_is_named(folder: Path, fields: dict[str, Any], named: str) -> None:
    refused(seal(folder, **fields), named)


def test_a_library_that_is_gone_is_named(folder: Path) -> None:
    (folder / LIBRARY).unlink()
    refused(folder, f"{LIBRARY} is missing (operators.file of engine.json)")


def refused(folder: Path, named: str) -> None:
    with pytest.raises(ModelDamaged) as caught:
        Engine.open(folder, slots=2, threads=1).close()
    assert named in str(caught.value)


def test_a_library_with_another_hash_is_not_loaded(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    served_in_its_place(seal(folder, sha256="0" * 64), "is not the file that was exported", caplog)


ELSEWHERE = """
import sys
from pathlib import Path
from tests.attacks.test_hostile_operators import Engine, ProviderMissing, Request, Settings
with Engine.open(Path(sys.argv[1]), slots=2, threads=1) as engine:
    print(engine.runtime, *engine.submit(Request((3, 5), Settings(max_tokens=5))).result(10)[0].ids)
try:
    Engine.open(Path(sys.argv[1]), slots=2, threads=1, runtime="native")
except ProviderMissing as error:
    print(error)
"""


def test_a_processor_without_kernels_is_served_by_onnxruntime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFX_NATIVE_KERNELS", "none")
    done = subprocess.run([sys.executable, "-c", ELSEWHERE, folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    served, refusal = done.stdout.splitlines()
    assert served.split() == ["onnxruntime", *map(str, toys.greedy((3, 5), 5))]
    assert "no AVX2" in refusal
    (line,) = done.stderr.strip().splitlines()
    assert "no AVX2" in line
