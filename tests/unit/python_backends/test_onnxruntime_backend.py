"""The Python backend gives every request the answer that it has alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from hfx.python_backends.onnxruntime.ragged import BatchInput, InvalidShape, Layout, Request, answer, check
from hfx.python_backends.onnxruntime.sessions import open_session
from tests.rigs.servers.onnxruntime_rig import (
    FP32,
    INT32,
    Recording,
    batch_input,
    doubling,
    doubling_config,
    outputs,
    ragged_config,
    request,
    save,
    string_parameters,
    value,
    write_padding,
    write_ragged,
)


@pytest.fixture
def ragged_file(tmp_path: Path) -> Path:
    return write_ragged(tmp_path)


@pytest.fixture
def config() -> dict[str, Any]:
    return ragged_config()


def test_requests_of_any_widths_get_their_own_answers(ragged_file: Path, config: dict[str, Any]) -> None:
    session, layout = open_session(config, ragged_file), Layout.read(config)
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


def test_rows_of_near_widths_share_a_run_where_padding_is_skipped(tmp_path: Path) -> None:
    session = Recording(open_session(ragged_config(), write_padding(tmp_path, "ids")), skips_padding=True)
    rows = {1: 3, 40: 9, 50: 2, 80: 1, 99: 2, 600: 1}  # width: rows
    requests = [request(*[[at] * width for at in range(count)]) for width, count in rows.items()]
    requests = [requests[at] for at in (2, 0, 5, 4, 1, 3)]
    answers = answer(session, Layout.read(ragged_config()), requests)
    widths = [[*dict.fromkeys(feed["item_shape"][:, 0].tolist())] for feed in session.feeds]
    assert widths == [[600], [99, 80, 50], [40], [1]]
    for asked, found in zip(requests, answers, strict=True):
        assert outputs(found)["total"].tolist() == asked.feed["ids"].sum(axis=1, keepdims=True).tolist()
        assert outputs(found)["doubled"].tolist() == (asked.feed["ids"] * 2).tolist()
        assert outputs(found)["doubled"].flags.c_contiguous


def test_rows_of_any_widths_share_a_run_of_few_tokens(tmp_path: Path) -> None:
    session = Recording(open_session(ragged_config(), write_padding(tmp_path, "ids")), skips_padding=True)
    requests = [request([1] * width) for width in (3, 40, 64, 8)]
    answer(session, Layout.read(ragged_config()), requests)
    assert [feed["item_shape"].tolist() for feed in session.feeds] == [[[64], [40], [8], [3]]]


def test_no_run_of_several_widths_has_more_elements_than_caches_hold(tmp_path: Path) -> None:
    session = Recording(open_session(ragged_config(), write_padding(tmp_path, "ids")), skips_padding=True)
    requests = [request(*[[1] * width] * 30) for width in (15, 13, 16)] + [request(*[[1] * 300] * 7)]
    answers = answer(session, Layout.read(ragged_config()), requests)
    assert [len(feed["item_shape"]) for feed in session.feeds] == [3, 3, 1, 60, 30]
    assert [len(outputs(found)["total"]) for found in answers] == [30, 30, 30, 7]


def test_a_request_with_inputs_of_different_widths_runs_alone(tmp_path: Path) -> None:
    """In a shared run, one of its tokens would stand in the place of another request's token."""
    ids, more = np.array([[1, 2]], np.int32), np.array([[9, 9, 9]], np.int32)
    config = ragged_config()
    config["input"] = [config["input"][0], config["input"][0] | {"name": "more"}]
    session = Recording(open_session(config, write_padding(tmp_path, "ids", "more")), skips_padding=True)
    odd = Request({"ids": ids, "more": more}, ("total",))
    good = Request({"ids": np.array([[5]], np.int32), "more": np.array([[7]], np.int32)}, ("total",))
    answers = answer(session, Layout.read(config), [odd, good])
    assert len(session.feeds) == 2
    assert outputs(answers[1])["total"].tolist() == [[12]]


def test_no_run_has_more_rows_or_elements_than_caches_hold(ragged_file: Path) -> None:
    config = ragged_config()
    session = Recording(open_session(config, ragged_file))
    many, long = request(*[[1]] * 200), request(*[[1] * 300] * 7)
    answers = answer(session, Layout.read(config), [many, long])
    assert [len(feed["item_shape"]) for feed in session.feeds] == [64, 64, 64, 8, 3, 3, 1]
    assert outputs(answers[0])["total"].tolist() == [[1]] * 200
    assert outputs(answers[1])["total"].tolist() == [[300]] * 7


def test_only_the_outputs_asked_for_are_computed(ragged_file: Path, config: dict[str, Any]) -> None:
    session = Recording(open_session(config, ragged_file))
    requests = [request([1, 2], wanted=("total",)), request([3, 4])]
    first, second = answer(session, Layout.read(config), requests)
    assert list(outputs(first)) == ["total"] and list(outputs(second)) == ["total", "doubled"]
    assert session.wanted == [("total",), ("total", "doubled")]


def test_answers_from_read_only_inputs_survive_the_next_run(ragged_file: Path, config: dict[str, Any]) -> None:
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
