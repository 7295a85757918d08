"""`hfx deploy bundle`: vendored wheels, how they are unpacked, and reproducible bytes."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfx.deploy import bundle, wheels
from hfx.deploy.arch import LIBRARIES, MACHINES
from hfx.deploy.deployment import Deployment, config_of, is_others, open_deployment
from hfx.deploy.folder import hash_everything
from hfx.deploy.options import Arch
from hfx.errors import FetchFailed, ModelCorrupt, UsageError
from hfx.manifest import read_manifest, verify_files
from hfx.names import COMPILED_TOKENIZER
from hfx.native.build import LIBRARY
from hfx.python_backends.label_net import NET as LABELS_NET
from hfx.python_backends.onnxruntime.config import ROWS_FILE
from hfx.releases import MINIMUM_SECURE, release
from hfx.repository import parse_config
from tests.rigs.files.repositories import NET_GPU, build, put, save, seal
from tests.rigs.files.wheels import HERE, wheels_for

ROOT = Path(__file__).parents[3]
MODULE = b"VALUE = 1\n"
ELF_MACHINES: dict[Arch, int] = {"amd64": 62, "arm64": 183}  # e_machine of elf.h


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return open_deployment(build(tmp_path / "repository"), ["m"])


def record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}"


def wheel(folder: Path, files: dict[str, bytes], record: str | None = None) -> Path:
    """Write a wheel of the package `p` with `files`."""
    path = folder / "p-1-py3-none-any.whl"
    lines = [record_line(name, content) for name, content in files.items()] + ["p-1.dist-info/RECORD,,"]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("p-1.dist-info/RECORD", "\n".join(lines) if record is None else record)
    return path


def test_what_a_wheel_makes_importable_is_unpacked_with_its_licences(tmp_path: Path) -> None:
    files = {
        "p/__init__.py": MODULE,
        "p-1.dist-info/licenses/LICENSE": b"free",
        "p-1.data/platlib/p/more.py": MODULE,
        "p-1.data/scripts/tool": b"#!python",
    }
    wheels.unpack(wheel(tmp_path, files), tmp_path / "out")
    assert {
        path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()
    } == {*("p/__init__.py", "p/more.py", "p-1.dist-info/licenses/LICENSE", "p-1.dist-info/RECORD")}


@pytest.mark.parametrize(
    ("files", "record"),
    [
        ({"../p.py": MODULE}, None),
        ({"/p.py": MODULE}, None),
        ({"p-1.data/purelib/../../p.py": MODULE}, None),
        ({"p.py": MODULE}, record_line("p.py", b"another")),
        ({"p.py": MODULE}, "p-1.dist-info/RECORD,,"),
        ({"p.py": MODULE}, "p.py,md5=abc,1"),
        ({"p.py": MODULE, "p-1.data/purelib/p.py": b"twice"}, None),
    ],
)
def test_a_file_that_is_not_as_recorded_or_leads_elsewhere_is_refused(
    tmp_path: Path, files: dict[str, bytes], record: str | None
) -> None:
    with pytest.raises(FetchFailed, match=r"p-1-py3-none-any\.whl is damaged"):
        wheels.unpack(wheel(tmp_path, files, record), tmp_path / "out")
    assert not (tmp_path / "p.py").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-30],
        lambda content: b"",
        lambda content: b"x" * 100,
        lambda content: content[:34] + b"\xff" + content[35:],  # the compressed data of p.py, behind its header
    ],
)
def test_a_damaged_wheel_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = wheel(tmp_path, {"p.py": MODULE})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(FetchFailed, match="is damaged"):
        wheels.unpack(path, tmp_path / "out")


def test_bundled_versions_equal_the_tested_constraints() -> None:
    tested = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    pinned = {wheels.NUMPY, wheels.TOKENIZERS, wheels.LLGUIDANCE, wheels.ONNXRUNTIME["cpu"]}
    assert pinned <= tested
    assert wheels.ONNXRUNTIME["gpu"] == wheels.ONNXRUNTIME["cpu"].replace("==", "-gpu==")
    dockerfile = (ROOT / "docker/Dockerfile").read_text()
    assert all(each in dockerfile for each in (*pinned, wheels.ONNXRUNTIME["gpu"]))


@pytest.mark.parametrize(("arch", "machine"), MACHINES.items())
def test_a_folder_without_the_wheels_is_an_error_that_names_them(
    arch: Arch, machine: str, deployment: Deployment, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FetchFailed, match=rf"numpy==1\.26\.4.*Python 3\.12 on {machine} in the folder .*empty"
    ) as error:
        bundle.write(replace(deployment, arch=arch), tmp_path / "out", bundle.Packages("3.12", tmp_path / "empty"))
    assert "\npip download --no-deps" in error.value.fix and "tokenizers==" in error.value.fix
    assert f"_{machine} " in error.value.fix
    assert not (tmp_path / "out").exists()


def test_the_default_python_is_that_of_the_release(deployment: Deployment) -> None:
    assert bundle.python_of(deployment) == release(MINIMUM_SECURE).python
    assert bundle.python_of(deployment, "3.11") == "3.11"
    for wrong in ("3", "3.x", "3.12;id", "2.7"):
        with pytest.raises(UsageError, match="--python"):
            bundle.python_of(deployment, wrong)
    with pytest.raises(UsageError, match="--python"):
        bundle.python_of(replace(deployment, release=release("24.11")))


@pytest.mark.parametrize(
    "record",
    [
        "yes", ["packages"], {"packages": "m/1/packages"},
        {"device": "cpu", "python": "3.12", "packages": "m", "arch": 64},
        {"device": "cpu", "python": 3.12, "packages": "m"},
        {"device": "cpu", "python": "3.12", "packages": "../m"}, {"device": "cpu", "python": "3.12", "packages": "/m"},
    ],
)  # fmt: skip
def test_a_manifest_with_an_odd_record_of_a_bundle_is_corrupt(deployment: Deployment, record: Any) -> None:
    [model] = deployment.models
    manifest = replace(model.manifest, choices={**model.manifest.choices, "bundle": record})
    with pytest.raises(ModelCorrupt, match=model.name):
        bundle.packages_of(replace(deployment, models=(replace(model, manifest=manifest),)))


def with_libraries(repository: Path, *archs: Arch) -> Path:
    """Add the native library for `archs` to the folders of a repository that have it: the headers of ELF files."""
    for arch in archs:
        header = b"\x7fELF\2\1\1" + bytes(9) + b"\3\0" + ELF_MACHINES[arch].to_bytes(2, "little")
        for folder in ("m_tokenize", "m_net"):
            (repository / folder / "1" / LIBRARIES[arch]).write_bytes(header)
    return seal(repository)


def elf_machines(folder: Path) -> list[int]:
    """Return e_machine of every ELF file below `folder`."""
    starts = [path.open("rb").read(20) for path in folder.rglob("*") if path.is_file()]
    return [int.from_bytes(start[18:], "little") for start in starts if start.startswith(b"\x7fELF")]


def packages_for(deployment: Deployment) -> bundle.Packages:
    needed = wheels.requirements(deployment, with_numpy=False)
    return bundle.Packages(HERE, wheels_for(needed, machine=deployment.machine), with_numpy=False)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ELF_MACHINES)
def test_an_encoder_in_one_hop_has_the_backend_of_the_processor(arch: Arch, tmp_path: Path) -> None:
    repository = build(tmp_path / "repository")
    (repository / "m_tokenize/1" / COMPILED_TOKENIZER).write_bytes(b"tokenizer")
    deployment = open_deployment(with_libraries(repository, *ELF_MACHINES), ["m"], arch=arch)
    assert deployment.models[0].is_native
    bundle.write(deployment, tmp_path / "out", packages_for(deployment))
    [backend] = (tmp_path / "out/m/1").glob("libtriton_hfx_*.so")
    assert backend.read_bytes() == (repository / "m_tokenize/1" / LIBRARIES[arch]).read_bytes()
    assert set(elf_machines(tmp_path / "out")) == {ELF_MACHINES[arch]}


@pytest.mark.parametrize("arch", ELF_MACHINES)
def test_the_library_of_the_deployments_processor_makes_an_encoder_native(arch: Arch, tmp_path: Path) -> None:
    repository = build(tmp_path / "repository")
    (repository / "m_tokenize/1" / COMPILED_TOKENIZER).write_bytes(b"tokenizer")
    assert open_deployment(with_libraries(repository, arch), ["m"], arch=arch).models[0].is_native


@pytest.mark.slow
@pytest.mark.parametrize("arch", ELF_MACHINES)
def test_a_bundle_has_libraries_for_its_own_processor_alone(arch: Arch, tmp_path: Path) -> None:
    deployment = open_deployment(with_libraries(build(tmp_path / "repository"), *ELF_MACHINES), ["m"], arch=arch)
    bundle.write(deployment, tmp_path / "out", packages_for(deployment))
    machines = elf_machines(tmp_path / "out")
    assert set(machines) == {ELF_MACHINES[arch]} and len(machines) >= 5  # 2 of the model, and those of 2 wheels
    assert (tmp_path / "out/m_net/1" / LIBRARIES[arch]).is_file()
    opened = open_deployment(tmp_path / "out", ["m"], arch=arch)
    assert bundle.packages_of(replace(opened, release=replace(opened.release, python=HERE))) == "m/1/packages"


def test_a_model_without_the_native_library_for_the_processor_is_refused(tmp_path: Path) -> None:
    repository = with_libraries(build(tmp_path / "repository"), "amd64")
    assert open_deployment(repository, ["m"], arch="amd64").machine == "x86_64"
    with pytest.raises(UsageError, match="'m' has no native library for arm64"):
        open_deployment(repository, ["m"], arch="arm64")


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_bundle_is_a_healthy_repository_of_one_device_and_the_same_each_time(device: str, tmp_path: Path) -> None:
    deployment = open_deployment(build(tmp_path / "repository"), ["m"], device=device)
    packages = packages_for(deployment)
    bundle.write(deployment, tmp_path / "one", packages)
    record = (tmp_path / "one/hfx-deploy.json").read_text()
    if device == "cpu":  # once is enough
        bundle.write(deployment, tmp_path / "two", packages)
        assert hash_everything(tmp_path / "one") == hash_everything(tmp_path / "two")
        assert record == (tmp_path / "two/hfx-deploy.json").read_text()

    manifest = read_manifest(tmp_path / "one/m/hfx.json")
    assert verify_files(manifest, tmp_path / "one") == []
    assert manifest.choices["bundle"]["packages"] == "m/1/packages"  # type: ignore[index,call-overload]
    assert (manifest.precision.cpu, manifest.precision.gpu) == (("fp32", None) if device == "cpu" else (None, "fp16"))
    files = {path.name for path in (tmp_path / "one/m_net/1").iterdir()}
    config = parse_config((tmp_path / "one/m_net/config.pbtxt").read_text())
    assert not (tmp_path / "one/m_net/configs").exists()
    if device == "cpu":
        assert files == {"model.onnx", "start.py", "model.py"} and config.backend == "python"
        assert config.parameters["model_file"].string_value == "model.onnx"
        assert (tmp_path / "one/m/1/packages/hfx_backend/onnxruntime/model.py").is_file()
    else:
        assert files == {config.default_model_filename} == {"model.fp16.onnx"} and config.backend == "onnxruntime"
        assert not (tmp_path / "one/m/1/packages/hfx_backend").exists()
    assert "m/1/packages/tokenizers-0.23.3.dist-info/METADATA" in json.loads(record)["files"], "it names the licence"

    # The start file gives the model the bundle's packages in a Python that has none.
    start = tmp_path / "one/m_tokenize/1/start.py"
    code = f"import sys; sys.path.append({str(start.parents[1])!r}); import importlib; "
    code += "importlib.import_module('1.start'); import tokenizers; print(tokenizers.__file__)"
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(str(tmp_path / "one/m/1/packages/tokenizers")), done.stderr
    assert verify_files(manifest, tmp_path / "one") == []


ROWS = "model.fp16.rows.onnx"


@pytest.fixture
def with_rows(tmp_path: Path) -> Path:
    """A repository whose model can be one C++ model on a GPU."""
    repository = build(tmp_path / "repository")
    for name in (COMPILED_TOKENIZER, LIBRARY):
        (repository / "m_tokenize/1" / name).write_bytes(name.encode())
    save(repository, ROWS)
    put(repository, replace(NET_GPU, parameters={ROWS_FILE: ROWS}), "gpu")
    return seal(repository)


def test_an_encoder_is_native_on_a_gpu_where_the_image_has_cuda_13(with_rows: Path) -> None:
    made = open_deployment(with_rows, ["m"], device="gpu")
    earlier = open_deployment(with_rows, ["m"], device="gpu", triton="24.12")
    assert made.models[0].is_native and not earlier.models[0].is_native
    assert made.shared_memory.value < earlier.shared_memory.value
    assert earlier.memory.value - made.memory.value > earlier.shared_memory.value // 2
    assert wheels.ONNXRUNTIME["gpu"] in wheels.requirements(made)
    assert wheels.ONNXRUNTIME["gpu"] not in wheels.requirements(earlier)


def test_a_net_of_labels_beside_the_tokenizer_needs_onnx_runtime_on_a_gpu(with_rows: Path) -> None:
    (with_rows / "m_tokenize/1" / LABELS_NET).write_bytes(b"net")
    deployment = open_deployment(seal(with_rows), ["m"], device="gpu", triton="24.12")
    assert wheels.ONNXRUNTIME["gpu"] in wheels.requirements(deployment)


def test_only_gpus_read_the_graph_of_rows(with_rows: Path) -> None:
    for device, others in (("gpu", {"model.onnx"}), ("cpu", {"model.fp16.onnx", ROWS})):
        net = config_of(with_rows, "m_net", device)
        files = (f"m_net/1/{path.name}" for path in (with_rows / "m_net/1").iterdir())
        assert {Path(path).name for path in files if is_others(path, net, device)} == others


@pytest.mark.full  # pip fetches the wheels to resolve them
@pytest.mark.parametrize("machine", MACHINES.values())
def test_the_bundle_of_the_default_release_has_wheels_for_its_python(
    machine: str, deployment: Deployment, tmp_path: Path
) -> None:
    python = bundle.python_of(deployment)
    assert python != HERE, "else the triton tests show it"
    for device in ("cpu", "gpu"):
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--no-deps"]
        platforms = [f"--platform=manylinux_2_{glibc}_{machine}" for glibc in wheels.GLIBC]
        everything = [wheels.NUMPY, wheels.TOKENIZERS, wheels.LLGUIDANCE, wheels.ONNXRUNTIME[device]]
        options = ["--only-binary=:all:", f"--python-version={python}", f"--target={tmp_path / 'target'}"]
        done = subprocess.run([*command, *options, *platforms, *everything], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
