"""The Python backend gives every request the answer that it would get alone, from either runtime."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hfx.python_backends.deploy import onnxruntime_files, postprocess_files, relay_files, stream_files, tokenize_files
from hfx.python_backends.onnxruntime.config import ConfigError, model_file, providers, session_options
from hfx.python_backends.onnxruntime.ragged import BatchInput, InvalidShape, Layout, Request, answer, check
from hfx.python_backends.onnxruntime.sessions import (
    Feed,
    OnnxRuntimeSession,
    OpenVinoSession,
    Outputs,
    Session,
    open_session,
    openvino_properties,
)
from tests.unit import onnx_toys

INT32, FP32 = "TYPE_INT32", "TYPE_FP32"


def accelerated(device: str, name: str) -> dict[str, Any]:
    return {"execution_accelerators": {f"{device}_execution_accelerator": [{"name": name, "parameters": {}}]}}


OPENVINO = accelerated("cpu", "openvino")


def string_parameters(**values: str) -> dict[str, Any]:
    return {key.replace("__", "."): {"string_value": value} for key, value in values.items()}


def batch_input(kind: str, target: str = "t", source: str = "s", data_type: str = INT32) -> dict[str, Any]:
    return {"kind": kind, "target_name": [target], "data_type": data_type, "source_input": [source]}


def ragged_config(**changed: Any) -> dict[str, Any]:
    """A net as exports make it: ids flattened, item_shape made by the server."""
    return {
        "max_batch_size": 64,
        "input": [{"name": "ids", "data_type": INT32, "dims": [-1], "allow_ragged_batch": True}],
        "output": [
            {"name": "total", "data_type": INT32, "dims": [1]},
            {"name": "doubled", "data_type": INT32, "dims": [-1]},
        ],
        "batch_input": [batch_input("BATCH_ITEM_SHAPE", "item_shape", "ids")],
        **changed,
    }


def save(folder: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], **constants: Any) -> Path:
    weights = {name: np.array(value, np.int64) for name, value in constants.items()}
    path = folder / "model.onnx"
    onnx.save(onnx_toys.graph(nodes, inputs, outputs, weights), path)
    return path


def value(name: str, shape: Sequence[Any], element: int = TensorProto.INT32) -> Any:
    return helper.make_tensor_value_info(name, element, list(shape))


def doubling(folder: Path, *shape: str | int) -> Path:
    """x -> y = x + x, of one shape."""
    return save(folder, [helper.make_node("Add", ["x", "x"], ["y"])], [value("x", shape)], [value("y", shape)])


def doubling_config(size: int, **changed: Any) -> dict[str, Any]:
    """The configuration of `doubling`; `changed` are fields of its input."""
    tensors = ({"name": name, "data_type": INT32, "dims": [-1]} for name in "xy")
    return {"max_batch_size": size, "input": [next(tensors) | changed], "output": [next(tensors)]}


@pytest.fixture
def ragged_file(tmp_path: Path) -> Path:
    """ids [tokens], item_shape [rows, 1] -> total [rows, 1] (the row's sum), doubled [rows, width]."""
    nodes = [
        helper.make_node("Shape", ["item_shape"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["dense_shape"], axis=0),
        helper.make_node("Reshape", ["ids", "dense_shape"], ["dense"]),
        helper.make_node("ReduceSum", ["dense", "one"], ["total"], keepdims=1),
        helper.make_node("Add", ["dense", "dense"], ["doubled"]),
    ]
    inputs = [value("ids", ["tokens"]), value("item_shape", ["rows", 1])]
    outputs = [value("total", ["rows", 1]), value("doubled", ["rows", "width"])]
    return save(tmp_path, nodes, inputs, outputs, zero=[0], one=[1], rest=[-1])


@pytest.fixture(params=["onnxruntime", "openvino"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ragged_config(optimization=OPENVINO if request.param == "openvino" else {})


def request(*rows: Sequence[int], wanted: tuple[str, ...] = ("total", "doubled")) -> Request:
    return Request({"ids": np.array(rows, np.int32)}, wanted)


class Recording:
    """A session that notes what it is fed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.inputs, self.outputs = session.inputs, session.outputs
        self.feeds: list[Feed] = []
        self.wanted: list[Sequence[str]] = []

    def run(self, feed: Feed, wanted: Sequence[str]) -> Outputs:
        self.feeds.append(feed)
        self.wanted.append(wanted)
        return self.session.run(feed, wanted)


def outputs(found: Outputs | Exception) -> Outputs:
    assert not isinstance(found, Exception), found
    return found


# Batches


def test_requests_of_any_widths_get_their_own_answers(ragged_file: Path, config: dict[str, Any]) -> None:
    session, layout = open_session(config, ragged_file), Layout.read(config)
    assert isinstance(session, OpenVinoSession if config["optimization"] else OnnxRuntimeSession)
    check(layout, config, session)
    requests = [request([1, 2, 3]), request([4, 5]), request([6, 7, 8], [9, 10, 11]), request([1]), request([2, 2])]
    for asked, found in zip(requests, answer(session, layout, requests), strict=True):
        rows = asked.feed["ids"]
        assert outputs(found)["total"].tolist() == rows.sum(axis=1, keepdims=True).tolist()
        assert outputs(found)["doubled"].tolist() == (rows * 2).tolist()
        alone = outputs(answer(session, layout, [asked])[0])
        assert {name: array.tobytes() for name, array in alone.items()} == {
            name: array.tobytes() for name, array in outputs(found).items()
        }


def test_rows_of_one_shape_share_a_run(ragged_file: Path, config: dict[str, Any]) -> None:
    session = Recording(open_session(config, ragged_file))
    requests = [request([at, at]) for at in range(10)] + [request([1, 1], [2, 2], [3, 3]), request([5, 5, 5])]
    answers = answer(session, Layout.read(config), requests)
    assert [feed["item_shape"].tolist() for feed in session.feeds] == [[[2]] * 12, [[2]], [[3]]]
    assert [outputs(found)["total"].tolist() for found in answers[9:]] == [[[18]], [[2], [4], [6]], [[15]]]


def test_no_run_has_more_rows_or_elements_than_memory_allows(ragged_file: Path) -> None:
    config = ragged_config()
    session = Recording(open_session(config, ragged_file))
    many, long = request(*[[1]] * 200), request(*[[1] * 10_000] * 7)
    answers = answer(session, Layout.read(config), [many, long])
    assert [len(feed["item_shape"]) for feed in session.feeds] == [64, 64, 64, 8, 3, 3, 1]
    assert outputs(answers[0])["total"].tolist() == [[1]] * 200
    assert outputs(answers[1])["total"].tolist() == [[10_000]] * 7


def test_only_the_outputs_asked_for_are_computed(ragged_file: Path, config: dict[str, Any]) -> None:
    session = Recording(open_session(config, ragged_file))
    requests = [request([1, 2], wanted=("total",)), request([3, 4])]
    first, second = answer(session, Layout.read(config), requests)
    assert list(outputs(first)) == ["total"] and list(outputs(second)) == ["total", "doubled"]
    assert session.wanted == [("total",), ("total", "doubled")]


def test_answers_from_inputs_that_can_only_be_read_are_not_overwritten_by_the_next_run(
    ragged_file: Path, config: dict[str, Any]
) -> None:
    session, layout, asked = open_session(config, ragged_file), Layout.read(config), request([1, 2])
    asked.feed["ids"].flags.writeable = False
    first = outputs(answer(session, layout, [asked])[0])["total"]
    answer(session, layout, [request([5, 6])])
    assert first.tolist() == [[3]]


def test_only_the_guilty_request_of_a_batch_fails(tmp_path: Path) -> None:
    # Gather fails at run time for an index that is out of range.
    nodes = [helper.make_node("Gather", ["table", "at"], ["out"])]
    path = save(tmp_path, nodes, [value("at", ["rows"])], [value("out", ["rows"], TensorProto.INT64)], table=[7, 8])
    config = {
        "max_batch_size": 8,
        "input": [{"name": "at", "data_type": INT32, "dims": []}],
        "output": [{"name": "out", "data_type": "TYPE_INT64", "dims": []}],
    }
    requests = [Request({"at": np.array([at], np.int32)}, ("out",)) for at in (0, 99, 1)]
    good, bad, also_good = answer(open_session(config, path), Layout.read(config), requests)
    assert isinstance(bad, Exception) and "99" in str(bad)
    assert (outputs(good)["out"].tolist(), outputs(also_good)["out"].tolist()) == ([7], [8])


def test_a_width_that_the_model_does_not_take_is_refused_before_the_run(
    ragged_file: Path, config: dict[str, Any]
) -> None:
    session = Recording(open_session(config, ragged_file))
    requests = [request([1, 2, 3]), request([1] * 4), request([]), request([4, 5, 6])]
    layout = Layout.read(config | {"parameters": string_parameters(max_width="3")})
    good, wide, empty, also_good = answer(session, layout, requests)
    assert [feed["item_shape"].tolist() for feed in session.feeds] == [[[3], [3]]]
    assert all(isinstance(refused, InvalidShape) for refused in (wide, empty))
    assert str(wide) == "ids has the shape [1, 4]; the model takes 1 to 3 tokens a row"
    assert [outputs(found)["total"].tolist() for found in (good, also_good)] == [[[6]], [[15]]]


def test_a_failed_run_leaves_the_next_one_of_any_width_alone(tmp_path: Path, config: dict[str, Any]) -> None:
    # Learned positions, as BERT has them: a table of 4, of which a wider text would need more.
    nodes = [
        helper.make_node("Shape", ["item_shape"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["dense_shape"], axis=0),
        helper.make_node("Reshape", ["ids", "dense_shape"], ["dense"]),
        helper.make_node("Shape", ["dense"], ["dense_sizes"]),
        helper.make_node("Gather", ["dense_sizes", "one"], ["width"]),
        helper.make_node("Slice", ["places", "zero", "width", "one"], ["positions"]),
        helper.make_node("Gather", ["table", "positions"], ["place_embeddings"]),
        helper.make_node("Gather", ["table", "dense"], ["word_embeddings"]),
        helper.make_node("Add", ["word_embeddings", "place_embeddings"], ["embeddings"]),
        helper.make_node("Cast", ["embeddings"], ["hidden"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["hidden", "two"], ["doubled"], keepdims=0),
        helper.make_node("ReduceSum", ["doubled", "one"], ["total"], keepdims=1),
    ]
    inputs = [value("ids", ["tokens"]), value("item_shape", ["rows", 1])]
    outputs_made = [value("total", ["rows", 1]), value("doubled", ["rows", "width"])]
    constants: dict[str, Any] = {"places": [[0, 1, 2, 3]], "table": [[0, 1], [1, 1], [2, 1], [3, 1]]}
    path = save(tmp_path, nodes, inputs, outputs_made, zero=[0], one=[1], two=[2], rest=[-1], **constants)
    session, layout = open_session(config, path), Layout.read(config)
    innocent = [request([1] * width) for width in (2, 3, 4)]
    for before in innocent:
        expected = outputs(answer(session, layout, [before])[0])["total"].tolist()
        assert isinstance(answer(session, layout, [request([1] * 6)])[0], Exception)
        assert outputs(answer(session, layout, [before])[0])["total"].tolist() == expected


def test_inputs_that_are_not_ragged_are_joined_by_rows(tmp_path: Path) -> None:
    config = doubling_config(8)
    session = Recording(open_session(config, doubling(tmp_path, "b", "n")))
    requests = [
        Request({"x": np.full((rows, width), rows, np.int32)}, ("y",)) for rows, width in [(1, 2), (2, 2), (1, 3)]
    ]
    answers = answer(session, Layout.read(config), requests)
    assert [feed["x"].shape for feed in session.feeds] == [(3, 2), (1, 3)]
    assert [outputs(found)["y"].tolist() for found in answers] == [[[2, 2]], [[4, 4]] * 2, [[2, 2, 2]]]


def test_a_model_without_batching_runs_requests_one_by_one(tmp_path: Path) -> None:
    config = doubling_config(0)
    requests = [Request({"x": np.arange(size, dtype=np.int32)}, ("y",)) for size in (2, 2, 3)]
    answers = answer(open_session(config, doubling(tmp_path, "n")), Layout.read(config), requests)
    assert [outputs(found)["y"].tolist() for found in answers] == [[0, 2], [0, 2], [0, 2, 4]]


def test_strings_pass_through_onnx_runtime(tmp_path: Path) -> None:
    text = TensorProto.STRING
    path = save(
        tmp_path, [helper.make_node("Identity", ["x"], ["y"])], [value("x", ["b"], text)], [value("y", ["b"], text)]
    )
    session = open_session({}, path)
    assert session.run({"x": np.array([b"a", "é".encode()], object)}, ["y"])["y"].tolist() == ["a", "é"]


# Batch inputs: the examples of model_config.proto


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [6, 4]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [6, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 6, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 6),
        ("BATCH_ITEM_SHAPE", [[3, 1], [3, 1], [2, 2]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 1, 3, 1, 2, 2]),
    ],
)
@pytest.mark.parametrize(("data_type", "dtype"), [(INT32, np.int32), (FP32, np.float32)])
def test_batch_inputs_are_those_of_the_proto(kind: str, expected: Any, data_type: str, dtype: Any) -> None:
    sources = [np.zeros((2, 3, 1)), np.zeros((1, 2, 2))]
    made = BatchInput.read(batch_input(kind, data_type=data_type)).make(sources, batched=True)
    assert made.tolist() == expected
    assert made.dtype == dtype


def test_counts_by_request_see_whole_requests(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["ends"], ["seen"]), helper.make_node("Identity", ["ids"], ["same"])]
    path = save(
        tmp_path,
        nodes,
        [value("ids", ["tokens"]), value("ends", ["requests"])],
        [value("seen", ["requests"]), value("same", ["tokens"])],
    )
    config = ragged_config(
        output=[{"name": "seen", "data_type": INT32, "dims": []}],
        batch_input=[batch_input("BATCH_ACCUMULATED_ELEMENT_COUNT", "ends", "ids")],
    )
    requests = [request([1, 2, 3], wanted=("seen",)) for _ in range(3)]
    answers = answer(open_session(config, path), Layout.read(config), requests)
    assert [outputs(found)["seen"].tolist() for found in answers] == [[3], [6], [9]]


# Configurations


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"batch_input": []}, "takes item_shape, which the configuration does not name"),
        ({"output": [{"name": "mean", "data_type": INT32}]}, "the graph has no output mean; it has total, doubled"),
        ({"output": [{"name": "total", "data_type": FP32}]}, "output total is TYPE_FP32 .* int32 in the graph"),
        ({"input": [{"name": "text", "data_type": INT32}]}, "the graph has no input text"),
        ({"batch_output": [{"target_name": ["total"]}]}, "batch_output is not supported"),
        ({"batch_input": [batch_input("BATCH_WEATHER")]}, "kind BATCH_WEATHER is unknown"),
        ({"batch_input": [batch_input("BATCH_ITEM_SHAPE") | {"source_input": ["a", "b"]}]}, "2 source inputs"),
        ({"batch_input": [batch_input("BATCH_ITEM_SHAPE", data_type="TYPE_INT64")]}, "TYPE_INT64"),
    ],
)
def test_a_configuration_that_does_not_fit_the_graph_is_refused(
    ragged_file: Path, changed: dict[str, Any], reason: str
) -> None:
    config = ragged_config(**changed)
    with pytest.raises(ConfigError, match=reason):
        check(Layout.read(config), config, open_session({}, ragged_file))


def test_a_ragged_input_must_be_flat_in_the_graph(tmp_path: Path) -> None:
    config = doubling_config(8, allow_ragged_batch=True)
    with pytest.raises(ConfigError, match="one dimension"):
        check(Layout.read(config), config, open_session({}, doubling(tmp_path, "b", "n")))


def test_openvino_gets_threads_and_properties_from_the_parameters() -> None:
    given = string_parameters(
        intra_op_thread_count="2", openvino__DYNAMIC_QUANTIZATION_GROUP_SIZE="768", session__x="ignored"
    )
    assert openvino_properties({"parameters": given}) == {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": "NO",
        "INFERENCE_NUM_THREADS": "2",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "768",
    }
    other = openvino_properties({"parameters": string_parameters(openvino__PERFORMANCE_HINT="THROUGHPUT")})
    assert other["PERFORMANCE_HINT"] == "THROUGHPUT"


def test_session_options_come_from_the_configuration() -> None:
    import onnxruntime

    given = string_parameters(
        intra_op_thread_count="2", inter_op_thread_count="3", execution_mode="1", enable_mem_arena="0",
        enable_mem_pattern="0", session__intra_op__allow_spinning="0",
    )  # fmt: skip
    options = session_options({"parameters": given, "optimization": {"graph": {"level": 1}}}, onnxruntime)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena and not options.enable_mem_pattern
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    plain = session_options({}, onnxruntime)
    assert plain.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL


def test_a_gpu_instance_gets_the_cuda_and_tensorrt_providers() -> None:
    listed = [
        {"name": "tensorrt", "parameters": {"precision_mode": "FP16", "max_workspace_size_bytes": "9"}},
        {"name": "cuda", "parameters": {"use_ep_level_unified_stream": "1"}},
    ]
    config = {
        "optimization": {"execution_accelerators": {"gpu_execution_accelerator": listed}},
        "parameters": string_parameters(cudnn_conv_algo_search="1", gpu_mem_limit="77"),
    }
    available = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    assert providers(config, "GPU", 1, available) == [
        ("TensorrtExecutionProvider", {"device_id": 1, "trt_max_workspace_size": "9", "trt_fp16_enable": "1"}),
        (
            "CUDAExecutionProvider",
            {
                "device_id": 1,
                "cudnn_conv_algo_search": "HEURISTIC",
                "gpu_mem_limit": "77",
                "use_ep_level_unified_stream": "1",
            },
        ),
        ("CPUExecutionProvider", {}),
    ]


@pytest.mark.parametrize(
    ("config", "kind", "reason"),
    [
        ({}, "GPU", r"no CUDAExecutionProvider .* install onnxruntime-gpu"),  # and never falls to the CPU
        ({"optimization": accelerated("gpu", "abacus")}, "GPU", "abacus"),
        ({}, "MODEL", "kind MODEL"),
    ],
)
def test_what_an_instance_cannot_have_is_refused(config: dict[str, Any], kind: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        providers(config, kind, 0, ["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"parameters": string_parameters(intra_op_thread_count="many")}, "intra_op_thread_count is 'many'"),
        ({"optimization": {"graph": {"level": 9}}}, "level is 9"),
        ({"optimization": accelerated("cpu", "abacus")}, "abacus"),
    ],
)
def test_a_configuration_that_cannot_be_honoured_is_refused(ragged_file: Path, config: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        open_session(config, ragged_file)


def test_a_missing_file_is_named_and_a_folder_of_its_name_holds_external_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"other\.onnx is not there"):
        open_session({}, model_file({"default_model_filename": "other.onnx"}, tmp_path))
    (tmp_path / "model.onnx").mkdir()
    assert model_file({}, tmp_path) == tmp_path / "model.onnx" / "model.onnx"


# What lies in Triton's folders


def test_every_file_to_deploy_exists_and_imports_only_its_like() -> None:
    tasks = ("text-classification", "zero-shot-classification", "token-classification", "question-answering")
    folders = (tokenize_files(), onnxruntime_files(), stream_files(), relay_files(), *map(postprocess_files, tasks))
    for files in folders:
        assert "model.py" in files
        for target, source in files.items():
            text = source.read_text(encoding="utf-8")
            assert "import hfx\n" not in text and "from hfx." not in text and "import hfx." not in text
            for dots, module in re.findall(r"^ *from (\.+)([\w.]+) import", text, re.MULTILINE):
                folder = Path(target).parents[len(dots) - 1]
                path = folder / module.replace(".", "/")
                assert {f"{path}.py", f"{path}/__init__.py"} & files.keys(), f"{target}: {dots}{module}"
    with pytest.raises(KeyError):
        postprocess_files("feature-extraction")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_runtimes_leave_no_trace_in_the_home_directory(ragged_file: Path, runtime: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    optimization = OPENVINO if runtime == "openvino" else {}
    script = (
        "from hfx.python_backends.onnxruntime.sessions import open_session\n"
        f"open_session({ {'optimization': optimization}!r}, {str(ragged_file)!r})\n"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("ORT_", "XDG_"))}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment | {"HOME": str(home)})
    assert list(home.rglob("*")) == []
