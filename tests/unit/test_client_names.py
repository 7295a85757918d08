"""The client's public face: every public name is exported, documented, and light to import."""

from __future__ import annotations

import inspect
import subprocess
import sys

import hfx.client
import hfx.triton

HEAVY = ("torch", "transformers", "onnx", "onnxruntime", "optimum", "openvino", "hfx.exporter")


def test_every_public_class_and_method_is_documented() -> None:
    for package in (hfx.client, hfx.triton):
        for name in package.__all__:
            public = getattr(package, name)
            assert inspect.getdoc(public), name
            for method, value in vars(public).items():
                if not method.startswith("_") and callable(value):
                    assert inspect.getdoc(value), f"{name}.{method}"


def test_all_names_what_the_package_has() -> None:
    for package in (hfx.client, hfx.triton):
        public = {name for name, value in vars(package).items() if inspect.isclass(value) and not name.startswith("_")}
        assert public == set(package.__all__)
        assert sorted(package.__all__) == package.__all__


def test_every_task_has_a_method_for_one_and_one_for_each() -> None:
    methods = {name for name in vars(hfx.client.Client) if not name.startswith("_")}
    for name in ("infer", "classify", "label_tokens", "answer", "embed", "zero_shot"):
        assert {name, f"{name}_each"} <= methods


def test_importing_the_client_imports_nothing_heavy() -> None:
    code = f"import sys, hfx.client; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
