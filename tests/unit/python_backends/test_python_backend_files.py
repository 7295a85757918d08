"""The Python files in Triton's model folders."""

from __future__ import annotations

import re
from pathlib import Path

from hfx.python_backends.deploy import (
    HERE,
    onnxruntime_files,
    postprocess_files,
    relay_files,
    stream_files,
    tokenize_files,
)


def test_the_engine_is_deployed_without_its_reference() -> None:
    names = {Path(target).name for target in stream_files() if target.startswith("engine/")}
    assert names == {path.name for path in (HERE / "engine").glob("*.py")} - {"reference.py"}


def test_every_file_to_deploy_exists_and_imports_only_its_like() -> None:
    folders = (tokenize_files(), postprocess_files(), onnxruntime_files(), stream_files(), relay_files())
    for files in folders:
        assert "model.py" in files
        for target, source in files.items():
            text = source.read_text(encoding="utf-8")
            assert "import hfx\n" not in text and "from hfx." not in text and "import hfx." not in text
            for dots, module in re.findall(r"^ *from (\.+)([\w.]+) import", text, re.MULTILINE):
                folder = Path(target).parents[len(dots) - 1]
                path = folder / module.replace(".", "/")
                assert {f"{path}.py", f"{path}/__init__.py"} & files.keys(), f"{target}: {dots}{module}"
