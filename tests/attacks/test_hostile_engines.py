"""Engine folders with damaged, missing or foreign files, or with an engine.json that does not fit them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.errors import ModelDamaged, ModelRefused, ProviderMissing
from tests.attacks.damage import DROPPED, edit_json
from tests.rigs.engine import engine_toys as toys

DECODER, ENCODER, BEAMS = "decoder.onnx", "encoder.onnx", "decoder.2.onnx"
Copy = Callable[[str], Path]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    toys.write_decoder(folder / "decoder")
    toys.write_encoder_decoder(folder / "encoder_decoder")
    return folder


@pytest.fixture
def copy(pristine: Path, tmp_path: Path) -> Copy:
    return lambda kind: Path(shutil.copytree(pristine / kind, tmp_path / kind))


def refused(folder: Path, named: str, kind: type[ModelRefused] = ModelDamaged, **options: Any) -> str:
    """Return the message of the error of exactly this kind, after a check that it names `named` and has a fix."""
    with pytest.raises(ModelRefused) as caught:
        Engine.open(folder, slots=2, threads=1, beams=(1, 2), **options).close()
    assert type(caught.value) is kind
    assert named in str(caught.value)
    assert "Export the model again" in str(caught.value) or kind is not ModelDamaged
    return str(caught.value)


def edit(folder: Path, **fields: Any) -> Path:
    """Set fields of engine.json."""
    edit_json(folder / "engine.json", **fields)
    return folder


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("name", [BEAMS, ENCODER])
def test_a_file_that_is_cut_off_is_refused(copy: Copy, name: str, share: float) -> None:
    folder = copy("encoder_decoder")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    refused(folder, name)


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, b"<html><body>404</body></html>", b"<net/>"])
def test_a_file_that_is_no_model_is_refused(copy: Copy, content: bytes) -> None:
    folder = copy("decoder")
    (folder / DECODER).write_bytes(content)
    refused(folder, DECODER)


@pytest.mark.parametrize("name", [BEAMS, ENCODER])
def test_a_file_that_is_gone_is_named(copy: Copy, name: str) -> None:
    folder = copy("encoder_decoder")
    (folder / name).unlink()
    refused(folder, name)


def test_a_model_for_another_kind_is_refused(copy: Copy) -> None:
    folder, other = copy("decoder"), copy("encoder_decoder")
    shutil.copy(other / BEAMS, folder / DECODER)
    refused(folder, str(folder))


@pytest.mark.parametrize("fields", [{"layers": 1}, {"layers": 3}, {"heads": 4}, {"head_dim": 16}, {"vocab_size": 500}])
def test_a_model_of_another_size_than_engine_json_says_is_refused(copy: Copy, fields: dict[str, int]) -> None:
    folder = edit(copy("decoder"), **fields)
    refused(folder, str(folder))


@pytest.mark.parametrize(
    ("runtime", "named"),
    [
        ("tensorrt", "runtime is 'tensorrt'"),
        ("native", "runtime is 'native'"),  # without its library
        (None, "runtime is null"),
        (DROPPED, "runtime is null"),
        (["openvino"], "runtime is ['openvino']"),
    ],
)
def test_an_invalid_runtime_in_engine_json_is_refused_by_its_value(copy: Copy, runtime: object, named: str) -> None:
    refused(edit(copy("decoder"), runtime=runtime), named)


@pytest.mark.parametrize(
    "facts", [None, [], "yes", {"decoder": "/etc/passwd"}, {"decoder": "../x.xml", "group": 10**20}]
)
def test_the_openvino_field_of_earlier_engine_files_is_ignored(copy: Copy, facts: object) -> None:
    with Engine.open(edit(copy("decoder"), runtime="openvino", openvino=facts), slots=2, threads=1) as engine:
        assert engine.runtime == "onnxruntime"


def test_an_engine_without_native_operators_refuses_that_runtime_only(copy: Copy) -> None:
    folder = copy("decoder")
    assert "no native operators" in refused(folder, "Export it again", ProviderMissing, runtime="native")
    for unknown in ("tensorrt", "openvino"):
        assert "Choose one of onnxruntime, native" in refused(folder, unknown, ProviderMissing, runtime=unknown)
    with Engine.open(folder, slots=2, threads=1) as engine:
        assert engine.runtime == "onnxruntime"


QUIET = """
import sys
heard = []
sys.addaudithook(lambda event, args: heard.append((event, args)) if event.startswith("socket.") else None)
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
with Engine.open(sys.argv[1], slots=2, threads=1) as engine:
    settings = Settings(max_tokens=5, decoder_prompt=(1,) if "encoder" in sys.argv[1] else ())
    print(*engine.submit(Request((3, 5), settings)).result(10)[0].ids)
assert not heard, heard
"""


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_an_engine_uses_no_network_and_writes_nothing_into_the_home_folder(
    pristine: Path, tmp_path: Path, kind: str
) -> None:
    command = [sys.executable, "-c", QUIET, str(pristine / kind)]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    wanted = toys.greedy((3, 5), 5) if kind == "decoder" else toys.greedy((1,), 5, (3, 5))
    assert ran.stdout.split() == [str(token) for token in wanted]
    assert not list(tmp_path.rglob("*")), "something was written into the home directory"
