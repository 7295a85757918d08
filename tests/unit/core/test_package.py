"""Imports: every public name of the client is documented and light, and each module has one name."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import hfx.client
import hfx.triton
from hfx.client.settings import Settings
from hfx.python_backends.engine.generation_settings import ALIASES

ROOT = Path(__file__).resolve().parents[3]
GUARDED = ("exporter", "client", "perf")
LINKS = (*GUARDED, "python_backends")  # at the top of the checkout, to folders of hfx/
HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "hfx.exporter",
         "numpy", "grpc", "tritonclient", "google", "httpx", "asyncio", "ssl")  # fmt: skip


def test_dunder_all_lists_every_public_class() -> None:
    for package in (hfx.client, hfx.triton):
        public = {name for name, value in vars(package).items() if inspect.isclass(value) and not name.startswith("_")}
        assert public == set(package.__all__)
        assert sorted(package.__all__) == package.__all__


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    blocking, waiting = dict(inspect.getmembers(hfx.client.Client)), dict(inspect.getmembers(hfx.client.AsyncClient))
    names = {name for name in blocking if not name.startswith("_")}
    assert names == {name for name in waiting if not name.startswith("_")}
    for name in (*names, "__init__"):
        ours, theirs = (inspect.signature(methods[name]) for methods in (blocking, waiting))
        if name != "each":  # its call returns an awaitable there
            assert ours.parameters == theirs.parameters, name
        if name not in ("each", "stream", "infer_each"):
            assert ours.return_annotation == theirs.return_annotation, name
            assert name == "__init__" or inspect.iscoroutinefunction(waiting[name]), name


def test_every_setting_is_documented_and_a_keyword() -> None:
    names = [field.name for field in dataclasses.fields(hfx.client.GenerationSettings)]
    assert Settings.__annotations__.keys() == {*names, *ALIASES}
    assert names == [name for name in Settings.__annotations__ if name not in ALIASES]
    documented = inspect.cleandoc(hfx.client.GenerationSettings.__doc__ or "")  # as Python 3.13 keeps it
    for name in names:
        assert f"\n`{name}` " in documented


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = f"import sys, hfx.client; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", LINKS)
def test_linked_top_level_packages_cannot_be_imported_by_their_own_name(name: str, tmp_path: Path) -> None:
    assert (ROOT / name).readlink() == Path("hfx") / name
    assert not (ROOT / "hfx" / name).is_symlink()
    code = f"import importlib.util, hfx; print(importlib.util.find_spec({name!r}))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "None", "the editable install puts the checkout on sys.path; install it again"


@pytest.mark.parametrize("name", GUARDED)
def test_a_package_has_one_name_in_the_checkout_too(name: str) -> None:
    ran = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True)
    assert ran.stderr.endswith(f"ImportError: This package is hfx.{name}. Import it by that name.\n")
