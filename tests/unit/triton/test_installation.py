"""The onnxruntime that runs hfx's encoders, and the folder of backends that a server is started with."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from hfx.errors import ServerError
from hfx.triton.installation import Installation, find_wheel


def installation(folder: Path, *backends: str) -> Installation:
    for path in ("python/libtriton_python.so", "python/triton_python_backend_utils.py", "python/stub"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).touch()
    for backend in backends:
        (folder / backend).mkdir()
    return Installation(folder / "tritonserver", {}, folder, folder / "python/stub")


@pytest.mark.parametrize(
    ("own", "device", "made"),
    [
        ((), "cpu", {"python", "onnxruntime"}),
        ((), "gpu", {"python", "onnxruntime"}),
        (("onnxruntime", "tensorrt"), "cpu", {"python", "onnxruntime", "tensorrt", "hfx_onnxruntime"}),
        (("onnxruntime",), "gpu", set()),
    ],
)
def test_hfxs_onnxruntime_is_used_on_cpus_and_where_none_is_installed(
    tmp_path: Path, own: tuple[str, ...], device: str, made: set[str]
) -> None:
    (tmp_path / "backends").mkdir()
    server = installation(tmp_path / "backends", *own)
    folder = server.backend_directory(tmp_path / "made", device)
    name = server.hfx_onnxruntime(device)
    if not made:
        assert folder == server.backends and name is None
        return
    assert name is not None and {path.name for path in folder.iterdir()} == made
    assert (folder / name / "model.py").is_symlink() and (folder / "python/stub").is_symlink()
    for backend in own:
        assert (folder / backend).samefile(server.backends / backend)


def test_without_onnxruntime_for_python_the_servers_own_runs_encoders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    server = installation(tmp_path, "onnxruntime")
    assert server.hfx_onnxruntime("cpu") is None
    assert server.backend_directory(tmp_path / "made", "cpu") == server.backends


@pytest.mark.parametrize(("system", "remedy"), [("Linux", "pip install"), ("Darwin", "--with docker")])
def test_the_embedded_server_is_offered_where_it_can_be_installed(
    system: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setitem(sys.modules, "pytriton", None)
    with pytest.raises(ServerError) as refused:
        find_wheel()
    assert remedy in refused.value.fix and ("container" in refused.value.message) == (system == "Darwin")
