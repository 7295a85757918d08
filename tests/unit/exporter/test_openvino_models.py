"""Whole models for OpenVINO, in each format, with activations by row and by group: near float32, alone as together."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.openvino import generator
from hfx.exporter.openvino.graph import OpenVinoGraph
from hfx.exporter.openvino.linear import Activations
from hfx.exporter.quantize.generator import FORMATS, Formats
from hfx.python_backends.engine.openvino import import_openvino
from tests.rigs import graph_rows, tiny_generators
from tests.rigs.graph_rows import random_rows
from tests.rigs.processors import LEVELS, int8_error

pytestmark = pytest.mark.slow

Written = Callable[[str, Formats, Activations], Path]
STEPS = 4
LENGTHS = (9, 33, 1, 4, 20, 40, 2, 31)
FAMILIES = ("gpt2", "llama", "bart", "t5-gated")
INT4_HEAD = replace(FORMATS["int4"], head="int4", embedding="int4")
WAYS: dict[str, tuple[Formats, Activations]] = {
    "fp32": (FORMATS["fp32"], "group"),
    "int8 by row": (FORMATS["int8"], "row"),
    "int8 by group": (FORMATS["int8"], "group"),
    "int4 by row": (FORMATS["int4"], "row"),
    "int4 by group": (FORMATS["int4"], "group"),
    "int4 head": (INT4_HEAD, "group"),
}
# Root-mean-square error of the logits, of their standard deviation; the nets are random, small and two layers deep.
ERRORS = {"fp32": 1e-6, "int8": int8_error(0.05), "int4": 0.45}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """The engine folder of a tiny generator, whose OpenVINO files quantize activations as asked."""

    @cache
    def make(name: str, formats: Formats, activations: Activations) -> Path:
        folder = tmp_path_factory.mktemp(name)
        checkpoint = tiny_generators.save(folder, tiny_generators.build(name))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(generator, "activations_for", lambda: activations)
            write_engine_folder(checkpoint, folder / "engine", formats, LEVELS, openvino=True)
        return folder / "engine"

    return make


@cache
def logits(folder: Path, which: tuple[int, ...]) -> NDArray[Any]:
    """[rows, steps, vocabulary] of these of the rows, computed in one batch."""
    inputs, answers = random_rows(LENGTHS), random_rows((STEPS,) * len(LENGTHS), seed=1)
    given, fed = [inputs[i] for i in which], [answers[i] for i in which]
    return graph_rows.decoded(folder, given, fed, runtime="openvino")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_near_float32_and_the_same_alone_and_together(written: Written, name: str, way: str) -> None:
    every = tuple(range(len(LENGTHS)))
    want, together = (logits(written(name, *WAYS[each]), every) for each in ("fp32", way))
    assert np.sqrt(((together - want) ** 2).mean()) <= ERRORS[way.split()[0]] * want.std()
    for index in map(LENGTHS.index, (min(LENGTHS), max(LENGTHS))):
        alone = logits(written(name, *WAYS[way]), (index,))[0]
        assert (alone.argmax(-1) == together[index].argmax(-1)).all()
        # By row products are of whole numbers. Nets as narrow as these are not quantized by group at all: the last bit
        # of a sum of floats may make K or V, where they are kept in bytes, another byte.
        allowed = 0.01 if name in ("gpt2", "llama") and way.startswith("int") else 2e-5
        assert np.abs(alone - together[index]).max() <= allowed * np.abs(together[index]).max()


@pytest.mark.parametrize("way", ["fp32", "int8 by row", "int4 head"])
@pytest.mark.parametrize("name", ["gpt2", "gpt2-untied", "t5-gated"])
def test_a_vocabularys_table_is_there_once_where_it_is_tied(written: Written, name: str, way: str) -> None:
    formats, activations = WAYS[way]
    folder = written(name, formats, activations)
    model = import_openvino().Core().read_model(str(folder / "openvino_decoder.xml"))
    tables = [node for node in model.get_ops() if node.get_friendly_name().endswith(".weight[padded]")]
    assert len(tables) == (2 if name == "gpt2-untied" else 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_files_hold_only_what_any_reader_knows(written: Written, name: str) -> None:
    folder = written(name, *WAYS["int8 by row"])
    for path in folder.glob("openvino_*.xml"):
        text = path.read_text(encoding="utf-8")
        assert "PagedAttention" not in text and 'version="extension"' not in text
        assert str(folder.parent) not in text


@pytest.mark.parametrize(
    ("name", "formats", "kept"),
    [
        ("gpt2", FORMATS["fp32"], "f32"),
        ("gpt2", FORMATS["int8"], "u8"),
        ("gpt2", FORMATS["int4"], "u8"),
        ("bart", FORMATS["fp32"], "f32"),
        ("bart", FORMATS["int8"], "f16"),
        ("t5-gated", FORMATS["int4"], "f16"),
    ],
)
def test_keys_and_values_are_kept_as_engine_json_says(written: Written, name: str, formats: Formats, kept: str) -> None:
    from hfx.python_backends.engine.openvino.model import OpenVinoModel
    from hfx.python_backends.engine.runner import SessionSettings
    from hfx.python_backends.engine.spec import read_spec

    spec = read_spec(written(name, formats, "row"))
    assert spec.openvino is not None and spec.openvino.kv_type == kept and spec.runtime == "openvino"
    inputs = OpenVinoModel(spec.openvino.decoder, spec, SessionSettings(threads=1)).inputs
    types = {np.dtype(port.dtype).name for key, port in inputs.items() if "_cache." in key}
    assert types == {{"u8": "uint8", "f16": "float16", "f32": "float32"}[kept]}


EXPORT = """
import sys
from pathlib import Path
asked = []
events = ("socket.connect", "socket.getaddrinfo", "socket.sendto")
sys.addaudithook(lambda event, args: asked.append((event, args)) if event in events else None)
from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.quantize.generator import FORMATS
from tests.rigs import tiny_generators
checkpoint = tiny_generators.checkpoint(Path(sys.argv[1]))
write_engine_folder(checkpoint, Path(sys.argv[2]), FORMATS["int8"], 127, openvino=True)
assert not asked, asked
assert sys.modules.get("openvino_telemetry") is None
"""


def test_writing_a_model_asks_no_network_and_reports_to_nobody(tmp_path: Path) -> None:
    tiny_generators.save(tmp_path / "checkpoint", tiny_generators.build("gpt2"))
    (tmp_path / "home").mkdir()
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "checkpoint"), str(tmp_path / "engine")]
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert not [path for path in (tmp_path / "home").rglob("*") if "intel" in str(path).lower()]


def test_a_model_that_the_disk_has_no_room_for_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """Not one of OpenVINO's, which `--cpu-runtime auto` would take for a model that it can't run."""
    graph = OpenVinoGraph("large")
    graph.output("y", graph.weight(np.zeros((1024, 1024), np.float32), "w"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError, match="OpenVINO could not write"):
            graph.save(tmp_path / "large.xml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
