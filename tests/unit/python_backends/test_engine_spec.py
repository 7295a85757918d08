"""A model that is damaged, or that this machine can't run, is refused by name before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from hfx.python_backends.engine.engine import Engine
from hfx.python_backends.engine.sessions import check_products, multiplies_bytes_exactly
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import ModelDamaged, ProcessorUnsuited, ProviderMissing, RuntimeTooOld
from tests.rigs.engine import engine_toys as toys

DECODERS = {str(beams): "top_k.onnx" for beams in range(1, 9)}
OPERATORS = {"file": "top_k.onnx", "sha256": "0", "kv_type": "float16"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.write_encoder_decoder(tmp_path_factory.mktemp("encoder-decoder"))


def changed(folder: Path, target: Path, **facts: Any) -> Path:
    """Copy the model of `folder` to `target` with other facts; `files__x` is a fact of its files."""
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    content = json.loads((folder / "engine.json").read_text())
    for name, value in facts.items():
        place, _, key = name.rpartition("__")
        (content[place] if place else content)[key] = value
    (target / "engine.json").write_text(json.dumps(content))
    return target


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"format": 2}, "format is 2"),
        ({"kind": "diffusion"}, "kind is 'diffusion'"),
        ({"layers": 0}, "layers is 0"),
        ({"heads": "2"}, "heads is '2'"),
        ({"kv_heads": None}, "kv_heads is null"),
        ({"kv_heads": 1}, "kv_heads is 1; it must be 2"),
        ({"max_source": None}, "max_source is null"),
        ({"beams": []}, r"beams is \[\]"),
        ({"kv_type": "float64"}, "kv_type is 'float64'"),
        ({"needs_vnni": "no"}, "needs_vnni is 'no'"),
        ({"operators": OPERATORS}, r"operators\.decoder is null"),
        ({"operators": OPERATORS | {"decoder": DECODERS, "kv_type": "int2"}}, r"operators\.kv_type is 'int2'"),
        ({"operators": OPERATORS | {"decoder": {"1": "../x.onnx"}}}, r"operators\.decoder\.1 is '\.\./x.onnx'"),
        ({"operators": OPERATORS | {"decoder": {"1": "top_k.onnx"}}}, r"operators\.decoder\.2 is null"),
        ({"operators": OPERATORS | {"decoder": ["top_k.onnx"]}}, r"operators\.decoder is \['top_k.onnx'\]"),
        ({"files": []}, r"files is \[\]"),
        ({"files__top_k": "../top_k.onnx"}, r"files\.top_k is '\.\./top_k.onnx'"),
        ({"files__decoder": {"1": "decoder.1.onnx"}}, r"files\.decoder\.2 is null"),
        ({"files__choose": "lost.onnx"}, r"lost\.onnx is missing \(files.choose of engine.json\)"),
        ({"files__encoder": "lost.onnx"}, r"lost\.onnx is missing \(files.encoder of engine.json\)"),
    ],
)
def test_a_damaged_description_is_refused_naming_the_field(
    folder: Path, tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelDamaged, match=message):
        Engine.open(changed(folder, tmp_path, **facts))


@pytest.mark.parametrize("heads", [0, -1, 3, 4, True, "1"])
def test_heads_of_keys_that_queries_cannot_share_are_refused(tmp_path: Path, heads: Any) -> None:
    folder = toys.write_decoder(tmp_path / "decoder")
    (tmp_path / "changed").mkdir()
    with pytest.raises(ModelDamaged, match=f"kv_heads is {json.dumps(heads)}".replace('"', "'")):
        read_spec(changed(folder, tmp_path / "changed", kv_heads=heads))


def test_a_description_from_before_heads_were_shared_is_still_read(folder: Path) -> None:
    assert "kv_heads" not in json.loads((folder / "engine.json").read_text())
    assert read_spec(folder).kv_heads == read_spec(folder).heads == toys.HEADS


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe"])
def test_a_file_that_is_no_description_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "engine.json").write_bytes(content)
    with pytest.raises(ModelDamaged, match=r"engine\.json"):
        Engine.open(tmp_path)


def test_a_graph_that_onnxruntime_cannot_load_is_refused_naming_the_file(folder: Path, tmp_path: Path) -> None:
    target = changed(folder, tmp_path)
    (target / "encoder.onnx").write_bytes(b"not a graph")
    with pytest.raises(ModelDamaged, match=r"can't load .*encoder\.onnx"):
        Engine.open(target)


def test_an_older_onnxruntime_is_refused_with_both_versions(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeTooOld, match=r"onnxruntime [\d.]+ is installed; the model needs 99\.1 or later"):
        Engine.open(changed(folder, tmp_path, minimum_onnxruntime="99.1"))


@pytest.mark.parametrize(
    ("cpuinfo", "exact"),
    [
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", True),
        ("flags\t\t: fpu avx2 avx_vnni\n", True),
        ("Features\t: fp asimd asimddp\n", True),
        (None, True),
    ],
)
def test_eight_bit_weights_are_refused_on_x86_processors_without_vnni(
    folder: Path, tmp_path: Path, cpuinfo: str | None, exact: bool
) -> None:
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    (tmp_path / "model").mkdir()
    spec = read_spec(changed(folder, tmp_path / "model", needs_vnni=True))
    assert multiplies_bytes_exactly(path) is exact
    if exact:
        check_products(spec, path)
    else:
        with pytest.raises(ProcessorUnsuited, match="no VNNI"):
            check_products(spec, path)
        check_products(read_spec(folder), path)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("CUDA", r"has no CUDAExecutionProvider .*Install onnxruntime-gpu"),
        ("NPU", "provider 'NPU' is unknown"),
    ],
)
def test_a_provider_that_is_not_there_is_refused(folder: Path, provider: str, message: str) -> None:
    if f"{provider}ExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip(f"this onnxruntime has {provider}")
    with pytest.raises(ProviderMissing, match=message):
        Engine.open(folder, provider=provider)
