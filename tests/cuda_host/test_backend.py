"""The C++ backend on the CUDA provider: its options are known there, and small batches launch captured graphs."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.rigs.machine.cuda_host import CUDA_HOST, needs_cuda_host, read_counts
from tests.unit.native.test_backend import VOCABULARY, compiled, folder
from tests.unit.native.test_device import TASKS, Case, environment, generated, line

__all__ = ["folder"]  # a fixture

pytestmark = needs_cuda_host


def first_tokens(path: Path, vocabulary: int, output: str) -> None:
    """Write a net that answers by the first token: [rows, 3]."""
    text = f"""<ir_version: 9, opset_import: ["" : 18]>
        net (int32[rows, width] input_ids, int32[rows, width] attention_mask, int32[rows, width] token_type_ids)
            => (float[rows, 3] {output}) <float[{vocabulary}, 3] table, int64 first = {{0}}, int64[1] axis = {{1}}> {{
            id = Gather <axis = 1> (input_ids, first)
            shown = Gather <axis = 1> (attention_mask, first)
            type = Gather <axis = 1> (token_type_ids, first)
            sum = Add (shown, type)
            float = Cast <to = 1> (sum)
            column = Unsqueeze (float, axis)
            rows_of_table = Gather (table, id)
            {output} = Add (rows_of_table, column)
        }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((vocabulary, 3), np.float32), "table"))
    onnx.save(model, path)


@pytest.mark.parametrize("task", TASKS[:2])
def test_every_request_is_answered_from_captured_graphs(task: str, folder: Path, tmp_path: Path, cuda: Path) -> None:
    program, library = compiled("plain")
    case = Case(task, True, tmp_path / "m", folder / "1/tokenizer.hfx")
    first_tokens(case.root / "1/model.onnx", len(VOCABULARY), "embedding" if task == TASKS[1] else "logits")
    (runtime,) = (CUDA_HOST / "onnxruntime" / "capi").glob("libonnxruntime.so.*")
    chance = random.Random(0)
    given = "".join(f"{line(generated(task, chance))}\n" for _ in range(60))
    counts = tmp_path / "counts"
    variables = {"LD_LIBRARY_PATH": f"{library.parent}:{cuda}", "CUDA_COUNTS": str(counts)}
    text = case.config(library).replace(str(library.with_name("libprovider.so")), str(runtime))
    done = subprocess.run(
        [program, case.root, text, "ask"],
        input=given, capture_output=True, text=True, timeout=300, env=environment(library) | variables,
    )  # fmt: skip
    assert done.returncode == 0 and "no run is captured" not in done.stderr, done.stderr[-4000:]
    assert {answer.split()[0] for answer in done.stdout.splitlines()} == {"0"}, done.stdout[:2000]
    made = read_counts(counts.read_text())
    assert made["launch a captured graph"] > made["begin to capture"] > 0
