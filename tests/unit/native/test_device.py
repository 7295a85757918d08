"""The backend on a GPU with the CPU's memory: the real ONNX Runtime behind stubs of its provider and CUDA's driver.

The graphs add and compare whole numbers, so that answers are exact in any order of the tokens, and padding shows.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hfx.python_backends.inputs import strings
from hfx.triton.one_hop import runtime_library
from tests.rigs.machine.tiers import full
from tests.unit.native.native_rows import NativeRows
from tests.unit.native.native_rows import compiled as compiled_rows
from tests.unit.native.test_backend import ON_GPU, SANITIZED, VOCABULARY, compiled, config, folder

__all__ = ["folder"]  # a fixture

FAILING = VOCABULARY.index("fails")
SCALE = 2.0**-10
BYTES, UNAVAILABLE, CANCELLED = 13, 4, 7  # codes of Triton
LOST_GPU = 86  # the exit code
Request = Mapping[str, np.ndarray]


def graph(
    path: Path, types: bool = False, classes: int = 2, kind: int = TensorProto.FLOAT, output: str = "logits"
) -> None:
    """Write a net: the sum of a sequence's ids times mask times (1 + type), their largest, and the sum of the mask.

    A run with the id FAILING fails.
    """
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["rows", "width"]) for name in names]
    table = numpy_helper.from_array(np.arange(FAILING, dtype=np.float32) * np.float32(SCALE), "table")
    axis = numpy_helper.from_array(np.array([1], np.int64), "axis")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["ids"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["ids", "mask"], ["masked"]),
    ]
    if types:
        nodes += [
            helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["masked", "types"], ["more"]),
            helper.make_node("Add", ["masked", "more"], ["x"]),
        ]
    else:
        nodes += [helper.make_node("Identity", ["masked"], ["x"])]
    nodes += [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"]),
        helper.make_node("ReduceMax", ["x", "axis"], ["most"]),
        helper.make_node("ReduceSum", ["mask", "axis"], ["count"]),
        helper.make_node("Concat", ["sum", "most", "count"][:classes], ["all"], axis=1),
        helper.make_node("Cast", ["all"], [output], to=kind),
    ]
    outputs = [helper.make_tensor_value_info(output, kind, ["rows", classes])]
    made = helper.make_graph(nodes, "net", inputs, outputs, [table, axis])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def expected(tensors: Mapping[str, np.ndarray], classes: int) -> np.ndarray:
    """Return the output of the graph of `graph` for the tensors of a request, [rows, (labels,) width]."""
    x = tensors["input_ids"] * tensors["attention_mask"] * (1 + tensors.get("token_type_ids", np.array(0))) * SCALE
    columns = [x.sum(-1), x.max(-1), tensors["attention_mask"].sum(-1)][:classes]
    return np.stack(columns, -1).astype(np.float32)


def environment(library: Path, **more: str) -> dict[str, str]:
    spec = importlib.util.find_spec("onnxruntime")
    assert spec and spec.origin
    real = runtime_library(Path(spec.origin).parent)
    if real is None:
        pytest.skip("the library of onnxruntime is built into its module")
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "STUB_ONNXRUNTIME": str(real), **more}


def on_gpu(library: Path, changed: Mapping[str, Any] | None = None, **parameters: str) -> str:
    return config(library.with_name("libprovider.so"), {"instance_group": [ON_GPU], **(changed or {})}, **parameters)


def started(
    program: Path, folder: Path, text: str, *arguments: str, given: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the program of stub_triton.cpp, with variables of the stubs."""
    command = [program, folder, text, *arguments]
    return subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=300, env=environment(program, **variables)
    )


@pytest.fixture
def net(folder: Path, tmp_path: Path) -> str:
    """The model's folder `folder` with a rectangular graph; its path in the version folder."""
    graph(tmp_path / "rows.onnx")
    return str(tmp_path / "rows.onnx")


# Each request is answered once, whatever fails


@SANITIZED
@pytest.mark.parametrize("words", ["", "captures", "full:8"])
def test_each_request_on_a_gpu_is_answered_and_released_once(
    words: str, sanitizer: str, folder: Path, net: str
) -> None:
    program, library = compiled(sanitizer)
    done = started(program, folder, on_gpu(library, model_file=net), STUB_PROVIDER=words)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert ("no run is captured as a graph of CUDA" in done.stderr) == bool(words)


# Answers are those of the rows alone


TASKS = ("text-classification", "feature-extraction", "text-ranking", "zero-shot-classification")
ANSWERS: dict[str, dict[str, Any]] = {
    TASKS[0]: {"labels": ["a", "b", "c"], "activation": "softmax", "default_top_k": 2},
    TASKS[2]: {"activation": "sigmoid"},
    TASKS[3]: {"entailment": 0, "contradiction": 2},
}


class Case:
    """A model of one task in a folder, with the answers that its rows get without a batch."""

    def __init__(self, task: str, types: bool, root: Path, tokenizer: Path) -> None:
        self.classes = 1 if task == TASKS[2] else 3
        self.task, self.root = task, root
        inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
        self.settings = {"task": task, "max_length": 300, "widths": [8, 16, 32, 64, 120, 200, 300], "inputs": inputs}
        self.settings |= {"pad_id": 5, "pad_type_id": 1, "takes_empty": True}
        (root / "1").mkdir(parents=True)
        (root / "1/tokenizer.hfx").write_bytes(tokenizer.read_bytes())
        (root / "1/settings.json").write_text(json.dumps(self.settings))
        answer = {"task": task, **ANSWERS.get(task, {})}
        (root / "1/answer.json").write_text(json.dumps(answer))
        output = "embedding" if task == TASKS[1] else "logits"
        graph(root / "1/model.onnx", types, self.classes, output=output)
        self.rows = NativeRows(compiled_rows(), tokenizer, self.settings, answer if task in ANSWERS else None)

    def config(self, library: Path) -> str:
        fields = {TASKS[2]: ["query", "text_input"], TASKS[3]: ["text_input", "candidate_labels"]}
        outputs = ["embedding"] if self.task == TASKS[1] else ["score"] if self.task == TASKS[2] else ["label", "score"]
        changed = {
            "input": [{"name": name} for name in fields.get(self.task, ["text_input"])],
            "output": [{"name": name} for name in (*outputs, "truncated_tokens")],
        }
        return on_gpu(library, changed)

    def answer(self, request: Request) -> str:
        """Return code and answer of a request as the program prints them."""
        self.rows.begin(request)
        tensors = self.rows.encode()
        made = expected(tensors, self.classes)
        answers = self.rows.embed(made) if self.task == TASKS[1] else self.rows.answer(made)
        answers["truncated_tokens"] = tensors["truncated_tokens"]
        names = [name for name in ("label", "score", "truncated_tokens", "embedding") if name in answers]
        return f"0 {''.join(name.encode().hex() + content(answers[name]).hex() for name in names)}"


def content(array: np.ndarray) -> bytes:
    if array.dtype != np.object_:
        return array.tobytes()
    return b"".join(len(text).to_bytes(4, "little") + text for text in array.ravel())


def line(request: Request, checks: int = -1) -> str:
    """Return a request as a line for the program; it is cancelled after `checks` checks, if these are not -1."""
    words = [str(checks)]
    for name, array in request.items():
        words += [name, str(BYTES), str(array.shape[0]), str(array.shape[1])]
        words += [f"x{text.hex()}" for text in array.ravel()]
    return " ".join(words)


def generated(task: str, chance: random.Random) -> Request:
    def text(least: int = 0) -> str:
        return " ".join(chance.choices("abc", k=max(least, chance.choice([0, 1, 3, 9, 30, 90, 250, 400]))))

    rows = chance.choice([1, 1, 1, 2, 7, 40])
    texts = strings(*(text() for _ in range(rows)))
    if task == TASKS[2]:
        return {"query": strings(*(text()[:40] for _ in range(rows))), "text_input": texts}
    if task == TASKS[3]:
        labels = chance.choice([1, 3, 30])
        names = [text(1)[:9] for _ in range(rows * labels)]
        texts = strings(*(text(1) for _ in range(rows)))
        return {"text_input": texts, "candidate_labels": strings(*names).reshape(rows, labels)}
    return {"text_input": texts}


@pytest.mark.parametrize("words", ["", full("full:9")])
@pytest.mark.parametrize("types", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_answers_in_batches_are_those_of_each_request_alone(
    task: str, types: bool, words: str, folder: Path, tmp_path: Path
) -> None:
    program, library = compiled("plain")
    case = Case(task, types, tmp_path / "m", folder / "1/tokenizer.hfx")
    chance = random.Random(f"{task}{types}")
    requests = [generated(task, chance) for _ in range(60)]
    given = "".join(f"{line(request)}\n" for request in requests)
    done = started(program, case.root, case.config(library), "ask", given=given, STUB_PROVIDER=words)
    assert done.returncode == 0, done.stderr[-4000:]
    for request, answer in zip(requests, done.stdout.splitlines(), strict=True):
        assert answer == case.answer(request), request


# What a GPU lacks


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"LD_LIBRARY_PATH": ""}, "there is no driver of NVIDIA (libcuda.so.1"),
        ({"STUB_CUDA_FAILS": "cuInit 100"}, "the GPU 0 can't be used (CUDA's error 100"),
        ({"STUB_CUDA_FAILS": "cuMemAlloc_v2 2"}, "bytes for batches (CUDA's error 2: out of memory): free some"),
        ({"STUB_PROVIDER": "missing"}, "install onnxruntime-gpu and CUDA's libraries, or serve on the CPU"),
        ({"STUB_CUDA_FAILS": "cuEventSynchronize 719 3"}, "CUDA's error 719: unspecified launch failure"),
        ({"STUB_PROVIDER": "full:0"}, "Failed to allocate memory"),
    ],
)
def test_a_model_that_a_gpu_can_not_run_is_not_loaded(
    variables: Mapping[str, str], words: str, folder: Path, net: str
) -> None:
    program, library = compiled("plain")
    done = started(program, folder, on_gpu(library, model_file=net), "load", **variables)
    assert done.returncode == 0 and words in done.stdout, done.stdout + done.stderr


def test_another_gpu_than_the_first_is_refused_by_its_number(folder: Path, net: str) -> None:
    program, library = compiled("plain")
    changed = {"instance_group": [{"kind": "KIND_GPU", "gpus": [3]}]}
    done = started(program, folder, on_gpu(library, changed, model_file=net), "load")
    assert "the GPU 3 can't be used (CUDA's error 101" in done.stdout


def ask_lines(texts: Sequence[str]) -> str:
    return "".join(f"{line({'text_input': strings(text)})}\n" for text in texts)


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuEventSynchronize"])
def test_requests_of_a_gpu_that_is_lost_are_refused_and_the_process_ends(call: str, folder: Path, net: str) -> None:
    program, library = compiled("plain")
    warm_up = 1 + 3 * 6  # runs: the largest one, and three widths with six numbers of sequences
    given, fails = ask_lines(["a b", "b a", "c"] * 20), f"{call} 719 {warm_up}"
    text = on_gpu(library, model_file=net)
    done = started(program, folder, text, "ask", "wait", given=given, STUB_CUDA_FAILS=fails)
    answers = [answer.split() for answer in done.stdout.splitlines()]
    assert len(answers) == 60 and {int(code) for code, _ in answers} == {UNAVAILABLE}
    assert {bytes.fromhex(words)[:26] for _, words in answers} == {b"[hfx:ENGINE_UNREACHABLE] T"}
    assert done.stderr.count("log: The GPU has failed (CUDA's error 719: unspecified launch failure)") == 1
    assert done.returncode == LOST_GPU


def test_a_run_without_memory_is_tried_again_in_halves(folder: Path, net: str) -> None:
    program, library = compiled("plain")
    texts = strings(*(["a b"] * 100))
    given = f"{line({'text_input': texts})}\n{ask_lines(['b'])}"
    text = on_gpu(library, model_file=net)
    usual = started(program, folder, text, "ask", given=given)
    short = started(program, folder, text, "ask", given=given, STUB_PROVIDER="full:3")
    assert usual.stdout == short.stdout and usual.stdout.startswith("0 ")


def test_a_large_request_is_cancelled_between_its_parts_and_others_are_answered(folder: Path, net: str) -> None:
    program, library = compiled("plain")
    large = {"text_input": strings(*(["a b a b a b a b a b"] * 6000))}  # 96,000 tokens, in runs of 256 sequences
    given = f"{line(large, 5)}\n{ask_lines(['a'] * 9)}{line(large)}\n"
    done = started(program, folder, on_gpu(library, model_file=net), "ask", given=given)
    codes = [int(answer.split()[0]) for answer in done.stdout.splitlines()]
    assert codes == [CANCELLED, *[0] * 10], done.stderr


def test_a_graph_with_another_output_is_refused(folder: Path, tmp_path: Path) -> None:
    program, library = compiled("plain")
    graph(tmp_path / "half.onnx", kind=TensorProto.FLOAT16)
    done = started(program, folder, on_gpu(library, model_file=str(tmp_path / "half.onnx")), "load")
    assert "the output logits of the graph is not FP32" in done.stdout


# The functions of ONNX Runtime


def test_the_functions_of_the_provider_have_the_numbers_that_they_have_in_the_library() -> None:
    """The stub replaces them, and runs all others. A library without the provider says so, for them alone."""
    base = ctypes.CDLL(environment(Path())["STUB_ONNXRUNTIME"]).OrtGetApiBase
    base.restype = ctypes.POINTER(ctypes.c_void_p)
    slots = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint32)(base()[0])(17)
    message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(slots[2])
    options = ctypes.c_void_p()

    def call(slot: int, *arguments: Any) -> str:
        status = ctypes.CFUNCTYPE(ctypes.c_void_p)(slots[slot])(*arguments)
        return (message(status) or b"").decode() if status else ""

    if not call(205, ctypes.byref(options)):
        pytest.skip("this onnxruntime has the provider")
    found = [call(slot, None, None, None, None) for slot in (205, 206, 207)]
    assert all("CUDA execution provider is not enabled" in words for words in found)
