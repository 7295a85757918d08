"""The backend with stubs of Triton and ONNX Runtime: each request gets one answer and one release, also on failure."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from hfx.exporter.compiled_tokenizer import compile_tokenizer
from hfx.native import build
from hfx.python_backends.large_requests import LARGE
from tests.unit.native.libraries import NATIVE, build_key
from tests.unit.native.native_rows import compiled as compiled_rows
from tests.zoo.cache import built

HERE = Path(__file__).parent
SOURCES = (*(NATIVE / "tokenizer").glob("*.cpp"), *(NATIVE / "backend").glob("*.cpp"), HERE / "stub_triton.cpp")
STUBS = {
    "libonnxruntime.so": HERE / "stub_onnxruntime.cpp",
    "libprovider.so": HERE / "stub_provider.cpp",
    "libcuda.so.1": HERE / "stub_cuda.c",
}
PROGRAM, LIBRARY = "triton", "libonnxruntime.so"
FLAGS = ["-std=c++17", "-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-Wno-psabi", "-pthread"]
OWN = ["-fno-exceptions", "-fno-rtti"]  # of hfx's sources
WRAPPED = ["-Wl,--wrap=malloc,--wrap=realloc", "-ldl", "-pthread"]
ADDRESSES = "-fsanitize=address,undefined -fno-sanitize-recover=all"
# Of clang. ONNX Runtime's functions are called by the number of their slot, with other types of pointers.
FUZZER = "-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function -fno-sanitize-recover=all"
SANITIZERS = {"plain": "", "addresses": ADDRESSES, "threads": "-fsanitize=thread", "fuzzer": FUZZER}
CLANG = next(filter(shutil.which, ["clang++", *(f"clang++-{version}" for version in range(25, 13, -1))]), None)
KEY = "5e" * 32  # of a shared net
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "fails")  # the last one's id is FAILING


def config(runtime: Path, changed: Mapping[str, Any], **parameters: str) -> str:
    """Return a configuration as Triton passes it, with `changed` keys and `parameters`."""
    unbounded = {"max_queue_size": "1000000", "max_queue_seconds": "0"}  # callers here don't wait for their answers
    usual = {"onnxruntime": str(runtime), "model_file": "model.onnx", "operators": "ours", **unbounded}
    values = {key: {"string_value": value} for key, value in {**usual, **parameters}.items()}
    outputs = [{"name": name} for name in ("label", "score", "truncated_tokens")]
    inputs = [{"name": "text_input"}, {"name": "top_k", "optional": True}]
    return json.dumps({"max_batch_size": 64, "input": inputs, "output": outputs, "parameters": values, **changed})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, with its version 1."""
    root = tmp_path_factory.mktemp("model")
    (root / "1").mkdir()
    tokenizer = Tokenizer(models.WordPiece({text: at for at, text in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(root / "tokenizer.json"))
    settings = {"task": "text-classification", "max_length": 16, "widths": [4, 8, 16]}
    (root / "1" / "tokenizer.hfx").write_bytes(compile_tokenizer(root / "tokenizer.json"))
    (root / "1" / "settings.json").write_text(json.dumps({**settings, "inputs": ["input_ids", "attention_mask"]}))
    answer = {"task": "text-classification", "labels": ["no", "yes"], "activation": "softmax", "default_top_k": 1}
    (root / "1" / "answer.json").write_text(json.dumps(answer))
    (root / "1" / "model.onnx").touch()
    other = shutil.copytree(root, root.with_name(f"{root.name}-other"))
    for each, last in ((root, [0.5, -0.5]), (other, [-1.0, 2.0])):
        (each / "1" / "adapter.bin").write_bytes(np.array([0.0] * 3000 + last, "<f4").tobytes())
    (root / "1-cut").mkdir()
    (root / "1-cut" / "model.onnx").touch()
    (root / "1-cut" / "adapter.bin").write_bytes(b"cut")
    return root


def compiled(sanitizer: str) -> tuple[Path, Path]:
    """Return the program of stub_triton.cpp and the library of stub_onnxruntime.cpp.

    They are compiled once for each state of the sources, with the other STUBS beside them.
    """
    compiler = CLANG if sanitizer == "fuzzer" else shutil.which("g++") and "g++"
    if not compiler:
        pytest.skip("no g++, whose sanitizers are libraries of their own, or no clang++, which has libFuzzer")
    command = [compiler, *FLAGS, f"-I{NATIVE}", *SANITIZERS[sanitizer].split()]
    key = build_key([*command, *OWN, *WRAPPED], [*SOURCES, *STUBS.values(), *NATIVE.rglob("*.h")])

    def compile_all(folder: Path) -> dict[str, Any]:
        (folder / build.HEADER).write_text(build.header())
        command.append(f"-I{folder}")
        objects = [folder / f"{source.parent.name}-{source.stem}.o" for source in SOURCES]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        subprocess.run([*command, *map(str, objects), *WRAPPED, "-o", str(folder / PROGRAM)], check=True)
        for name, stub in STUBS.items():
            of_language = command if stub.suffix == ".cpp" else [compiler, "-xc", *SANITIZERS[sanitizer].split()]
            subprocess.run([*of_language, str(stub), "-shared", "-fPIC", "-o", str(folder / name)], check=True)
        return {"command": command}

    def compile_one(source: Path, made: Path) -> None:
        own = OWN if source.parent != HERE else []
        subprocess.run([*command, *own, "-c", str(source), "-o", str(made)], check=True)

    folder = built(f"backend-stubs-{sanitizer}", key, compile_all)
    return folder / PROGRAM, folder / LIBRARY


def run(program: Path, *arguments: Path | str) -> str:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout.strip()


SANITIZED = pytest.mark.parametrize(
    "sanitizer", ["plain", *(pytest.param(name, marks=pytest.mark.full) for name in ("addresses", "threads"))]
)


@SANITIZED
@pytest.mark.parametrize("skips_padding", ["1", "0"])
def test_each_request_is_answered_and_released_once(skips_padding: str, sanitizer: str, folder: Path) -> None:
    program, library = compiled(sanitizer)
    run(program, folder, config(library, {}, skips_padding=skips_padding))


@SANITIZED
def test_two_leaders_answer_each_caller_as_one_does(
    sanitizer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_PAIRS", "1")
    program, library = compiled(sanitizer)
    two = config(library, {}, skips_padding="1", intra_op_thread_count="2")
    run(program, folder, two)
    done = subprocess.run([program, folder, two, "mix", "4000", "32"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "two runs at once\n"), done.stdout + done.stderr[-4000:]


@SANITIZED
def test_models_that_share_a_net_come_and_go(sanitizer: str, folder: Path) -> None:
    program, library = compiled(sanitizer)
    run(program, folder, config(library, {}, skips_padding="1", shared_net=KEY))


def test_of_every_thousand_runs_for_several_requests_one_is_checked(folder: Path) -> None:
    program, library = compiled("plain")
    printed = run(program, folder, config(library, {"name": "m"}, skips_padding="1"), "mix", "12000", "8").splitlines()
    failed, passed = (int(line.split(": ")[1]) for line in printed[:2])
    assert [line.split(": ")[0] for line in printed] == ["model=m,result=failed", "model=m,result=passed"]
    assert failed == 0
    assert passed >= 1


def test_answers_that_would_go_to_other_callers_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_MIXES", "1")
    program, library = compiled("plain")
    printed = run(program, folder, config(library, {"name": "m"}, skips_padding="1"), "mix", "10000", "8").splitlines()
    assert printed == [
        "model=m,result=failed: 1",
        "model=m,result=passed: 0",
        "the answers of several requests may have been mixed, so none is given",
    ]


SMALL, PART = 10, LARGE  # tokens


@pytest.mark.parametrize(
    ("tokens", "order"),
    [
        ([], ""),
        ([SMALL] * 5, "01 23 4"),
        ([3 * PART], "0 0 0"),
        # A large request begins when it is the first one, and small ones run between its parts, in batches.
        ([SMALL, 3 * PART, SMALL, SMALL, SMALL], "0 1 23 1 4 1"),
        ([SMALL, SMALL, SMALL, 2 * PART], "01 2 3 3"),
        # Two large requests run in turns, and the third one begins when the first one has ended.
        ([2 * PART, 3 * PART, 2 * PART], "0 0 1 2 1 2 1"),
        ([2 * PART, SMALL, 3 * PART, SMALL, SMALL, SMALL, 2 * PART], "0 13 0 45 2 6 2 6 2"),
    ],
)
def test_parts_of_large_requests_run_in_turns_and_between_batches(tokens: list[int], order: str) -> None:
    made = ctypes.create_string_buffer(100)
    compiled_rows().queue_order((ctypes.c_size_t * len(tokens))(*tokens), len(tokens), 2, made)
    assert made.value.decode().rstrip() == order


@pytest.mark.parametrize(
    ("tokens", "order"),
    [
        ([SMALL] * 5, "01234"),  # too few for two
        ([32] * 4, "(01) [2] (3)"),
        ([100, SMALL], "01"),  # one would end long before the other
        ([400] * 4, "(0) [1] (2) [3]"),
        # Large requests use both threads, as do the small ones between their parts.
        ([32, 32, 2 * PART, 32, 32], "01 2 34 2"),
        ([32] * 4 + [2 * PART], "(01) [2] (3) 4 4"),
    ],
)
def test_two_leaders_share_what_waits(tokens: list[int], order: str) -> None:
    made = ctypes.create_string_buffer(100)
    compiled_rows().order_of_two((ctypes.c_size_t * len(tokens))(*tokens), len(tokens), 8, made)
    assert made.value.decode().rstrip() == order


ON_GPU = {"kind": "KIND_GPU", "gpus": [0]}
GPU = {"gpu_execution_accelerator": [{"name": "tensorrt"}]}


@pytest.mark.parametrize(
    ("changed", "parameters", "words"),
    [
        ({}, {}, ""),
        ({"max_batch_size": 0}, {}, "max_batch_size must be at least 1"),
        ({"dynamic_batching": {}}, {}, "dynamic_batching can't be used: the backend has a queue of its own"),
        ({"batch_output": [{}]}, {}, "batch_output can't be used"),
        ({"instance_group": [{"kind": "KIND_GPU"}]}, {}, "must be one group with one number in gpus"),
        ({"instance_group": [{"kind": "KIND_GPU", "gpus": [0, 1]}]}, {}, "serve several GPUs with --steps python"),
        ({"instance_group": [ON_GPU, {"kind": "KIND_CPU"}]}, {}, "must be one group with one number in gpus"),
        ({"instance_group": [ON_GPU]}, {"shared_net": KEY}, "adapters are served in one hop on CPUs only"),
        ({"optimization": {"execution_accelerators": GPU}}, {}, "execution_accelerators can't be used"),
        ({"optimization": {"graph": {"level": 3}}}, {}, "optimization.graph.level"),
        ({"model_transaction_policy": {"decoupled": True}}, {}, "a request has one answer"),
        ({"output": [{"name": "logits"}]}, {}, "output logits is none of the task's"),
        ({}, {"intra_op_thread_count": "two"}, "intra_op_thread_count is 'two'"),
        ({}, {"session.intra_op.spin_duration_us": "-1"}, "spin_duration_us is '-1'"),
        ({}, {"max_queue_seconds": "soon"}, "max_queue_seconds"),
        ({}, {"max_width": "8"}, "max_width is below the widths"),
        ({}, {"model_file": "other.onnx"}, "there is no such graph"),
        ({}, {"shared_net": KEY}, ""),
        ({}, {"shared_net": KEY.upper()}, "shared_net is no SHA-256"),
        ({}, {"shared_net": KEY, "model_file": "other/model.onnx"}, "there is no such graph"),
        ({}, {"shared_net": KEY, "model_file": "../1-cut/model.onnx"}, "has 3 bytes, which are no FP32 numbers"),
        ({}, {"onnxruntime": "/nowhere.so"}, "/nowhere.so"),
        ({}, {"onnxruntime": "libc.so.6"}, "libc.so.6"),
    ],
)
def test_an_unsupported_backend_configuration_is_refused(
    changed: Mapping[str, Any],
    parameters: Mapping[str, str],
    words: str,
    folder: Path,
) -> None:
    program, library = compiled("plain")
    text = config(library, changed, **{"skips_padding": "1", **parameters})
    said = run(program, folder, text, "load")
    assert words in said and bool(said) == bool(words)


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_runs_without_operators_where_the_processor_has_no_kernels(shared: bool, folder: Path) -> None:
    program, library = compiled("plain")
    parameters = {"skips_padding": "1", **({"shared_net": KEY} if shared else {})}
    command = [program, folder, config(library, {"name": "m"}, **parameters), "load"]
    done = subprocess.run(
        command, env=os.environ | {"STUB_REPLACED": "hfx: no kernels"}, capture_output=True, text=True
    )
    if shared:  # the operators of adapters have no definitions in the graph
        assert done.returncode == 1 and done.stderr == "operators are registered\n"
    else:
        assert done.returncode == 0 and not done.stdout.strip()
        assert re.fullmatch("log: hfx: no kernels.* m\n", done.stderr)
