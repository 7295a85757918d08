"""Engine folders whose OpenVINO files are damaged, gone or another model's, and an engine.json that lies about them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.errors import ModelDamaged, ModelRefused, ProviderMissing
from tests.attacks.damage import DROPPED
from tests.rigs import engine_toys as toys
from tests.rigs.openvino_toys import DECODER, ENCODER, write_toy

WEIGHTS = Path(DECODER).with_suffix(".bin").name
Copy = Callable[[str], Path]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engines")
    for kind in ("decoder", "encoder_decoder"):
        write_toy(folder / kind, kind, "openvino")
    return folder


@pytest.fixture
def copy(pristine: Path, tmp_path: Path) -> Copy:
    return lambda kind: Path(shutil.copytree(pristine / kind, tmp_path / kind))


def refused(folder: Path, named: str, kind: type[ModelRefused] = ModelDamaged, **options: Any) -> str:
    """The message of the error of just this kind: it names `named` and says a fix."""
    with pytest.raises(ModelRefused) as caught:
        Engine.open(folder, slots=2, threads=1, **options).close()
    assert type(caught.value) is kind
    assert named in str(caught.value)
    assert "Export the model again" in str(caught.value) or kind is not ModelDamaged
    return str(caught.value)


def edit(folder: Path, **fields: Any) -> Path:
    """Set fields of engine.json, with a dot for those of its openvino."""
    file = folder / "engine.json"
    facts = json.loads(file.read_text())
    for name, value in fields.items():
        holder = facts["openvino"] if name.startswith("openvino_") else facts
        holder[name.removeprefix("openvino_")] = value
        if value is DROPPED:
            del holder[name.removeprefix("openvino_")]
    file.write_text(json.dumps(facts))
    return folder


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("name", [DECODER, WEIGHTS, ENCODER])
def test_a_file_that_is_cut_off_is_refused(copy: Copy, name: str, share: float) -> None:
    folder = copy("encoder_decoder")
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(len(content) * share)])
    refused(folder, Path(name).stem)


@pytest.mark.parametrize("content", [bytes(range(256)) * 20, b"<html><body>404</body></html>", b"<net/>"])
def test_a_file_that_is_no_model_is_refused(copy: Copy, content: bytes) -> None:
    folder = copy("decoder")
    (folder / DECODER).write_bytes(content)
    refused(folder, DECODER)


@pytest.mark.parametrize("name", [DECODER, WEIGHTS])
def test_a_file_that_is_gone_is_named(copy: Copy, name: str) -> None:
    folder = copy("decoder")
    (folder / name).unlink()
    refused(folder, Path(name).stem)


def test_a_model_for_another_kind_is_refused(copy: Copy) -> None:
    folder, other = copy("decoder"), copy("encoder_decoder")
    for path in other.glob("openvino_decoder.*"):
        shutil.copy(path, folder / path.name)
    refused(folder, DECODER)


@pytest.mark.parametrize("fields", [{"layers": 1}, {"layers": 3}, {"heads": 4}, {"head_dim": 16}, {"vocab_size": 500}])
def test_a_model_of_another_size_than_engine_json_says_is_refused(copy: Copy, fields: dict[str, int]) -> None:
    refused(edit(copy("decoder"), **fields), DECODER)


LIES: list[tuple[dict[str, Any], str]] = [
    ({"openvino": None}, "runtime is 'openvino'"),
    ({"openvino": DROPPED}, "runtime is 'openvino'"),
    ({"openvino": []}, "openvino is []"),
    ({"openvino": "yes"}, "openvino is 'yes'"),
    ({"runtime": "tensorrt"}, "runtime is 'tensorrt'"),
    ({"runtime": None}, "runtime is None"),
    ({"runtime": ["openvino"]}, "runtime is ['openvino']"),
    ({"openvino_kv_type": "bf16"}, "openvino.kv_type is 'bf16'"),
    ({"openvino_kv_type": DROPPED}, "openvino.kv_type is None"),
    ({"openvino_kv_type": {"u8": 1}}, "openvino.kv_type is {'u8': 1}"),
    ({"openvino_group": -1}, "openvino.group is -1"),
    ({"openvino_group": "128"}, "openvino.group is '128'"),
    ({"openvino_group": True}, "openvino.group is True"),
    ({"openvino_group": 10**20}, DECODER),
    ({"openvino_minimum": 5}, "openvino.minimum is 5"),
    ({"openvino_minimum": ""}, "openvino.minimum is ''"),
    ({"openvino_decoder": "../decoder/openvino_decoder.xml"}, "openvino.decoder is '../decoder"),
    ({"openvino_decoder": "/etc/passwd"}, "openvino.decoder is '/etc/passwd'"),
    ({"openvino_decoder": ".."}, "openvino.decoder"),
    ({"openvino_decoder": ""}, "openvino.decoder is ''"),
    ({"openvino_decoder": ["a"]}, "openvino.decoder is ['a']"),
    ({"openvino_decoder": DROPPED}, "openvino.decoder is None"),
]


@pytest.mark.parametrize(("fields", "named"), LIES, ids=[named for _, named in LIES])
def test_a_field_that_cannot_be_meant_is_named(copy: Copy, fields: dict[str, Any], named: str) -> None:
    refused(edit(copy("decoder"), **fields), named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"openvino_kv_type": "u8"}, "openvino.kv_type is 'u8'"),  # bytes are packed by OpenVINO alone
        ({"openvino_encoder": None}, "openvino.encoder is None"),
        ({"openvino_encoder": "a/b.xml"}, "openvino.encoder is 'a/b.xml'"),
        ({"openvino_encoder": "gone.xml"}, "gone.xml is missing"),
    ],
)
def test_an_encoder_that_cannot_be_meant_is_named(copy: Copy, fields: dict[str, Any], named: str) -> None:
    refused(edit(copy("encoder_decoder"), **fields), named)


def test_a_folder_without_openvino_refuses_it_by_name_and_serves_otherwise(copy: Copy) -> None:
    folder = edit(copy("decoder"), openvino=DROPPED, runtime="onnxruntime")
    assert "no files for OpenVINO" in refused(folder, "Export it again", ProviderMissing, runtime="openvino")
    assert "Choose one of onnxruntime, openvino" in refused(folder, "'tensorrt'", ProviderMissing, runtime="tensorrt")
    with Engine.open(folder, slots=2, threads=1) as engine:
        assert engine.runtime == "onnxruntime"


def test_a_package_that_is_too_old_is_replaced_by_onnxruntime_unless_it_is_asked_for(
    copy: Copy, caplog: pytest.LogCaptureFixture
) -> None:
    folder = edit(copy("decoder"), openvino_minimum="2099.1")
    with Engine.open(folder, slots=2, threads=1) as engine:
        assert engine.runtime == "onnxruntime"
        assert engine.submit(Request((3, 5), Settings(max_tokens=5))).result(10)[0].ids == toys.greedy((3, 5), 5)
    (record,) = [each for each in caplog.records if "openvino" in each.getMessage().lower()]
    assert record.levelname == "WARNING" and "needs 2099.1 or later" in record.getMessage()
    assert "pip install 'openvino>=2099.1'" in refused(folder, "2099.1", ProviderMissing, runtime="openvino")


QUIET = """
import sys
heard = []
sys.addaudithook(lambda event, args: heard.append((event, args)) if event.startswith("socket.") else None)
from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.request import Request, Settings
with Engine.open(sys.argv[1], slots=2, threads=1) as engine:
    assert engine.runtime == "openvino"
    settings = Settings(max_tokens=5, decoder_prompt=(1,) if "encoder" in sys.argv[1] else ())
    print(*engine.submit(Request((3, 5), settings)).result(10)[0].ids)
assert not heard, heard
assert sys.modules.get("openvino_telemetry") is None
assert not any(name.startswith("openvino_telemetry.") for name in sys.modules)
"""


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_an_engine_on_openvino_asks_no_network_and_reports_to_nobody(pristine: Path, tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", QUIET, str(pristine / kind)]
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    wanted = toys.greedy((3, 5), 5) if kind == "decoder" else toys.greedy((1,), 5, (3, 5))
    assert ran.stdout.split() == [str(token) for token in wanted]
    assert not list(tmp_path.rglob("*")), "something was written into the home directory"
