"""Models that differ only in a small file of weights share one net, and answer as models with nets of their own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from hfx.errors import ServerError
from hfx.manifest import hash_folder, net_sha256
from hfx.python_backends.onnxruntime.config import ADAPTER_FILE, SHARED_NET
from hfx.triton import EmbeddedServer
from tests import zoo
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.clients.repeated_calls import calling
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.renamed import copy_renamed, seal
from tests.rigs.servers.short_servers import shared_nets, started

pytestmark = pytest.mark.triton

BASE, MODELS = "base", ("one", "two", "three")
COPIES = tuple(f"copy-{number}" for number in range(17))  # twenty with MODELS
CLASSES, ROOM = 3, 4  # of a model, and of the net, which has a class more than the models
STRIDE = 5001  # a slot is not a whole number of pages
TEXTS = [example.text for example in zoo.heldout("sentiment", 24)]
LONG = [" ".join(TEXTS)] * 64  # a large request, which runs in parts
THREADS = 8


def weights(name: str) -> Any:
    """Return the weights of a model: numbers at the begin and the end, and pages of zeros between."""
    ends = np.random.default_rng(list(name.encode())).normal(0, 2, 2 * CLASSES).astype("<f4")
    return np.concatenate([ends[:CLASSES], np.zeros(STRIDE - 2 * CLASSES, "<f4"), ends[CLASSES:]])


def add_pool(path: Path, room: int) -> None:
    """Let a graph add a model's first and last weights to its logits, of which it makes `room`."""
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    logits = graph.output[0]
    for node in graph.node:
        node.output[:] = ["plain" if name == logits.name else name for name in node.output]
    rest = room - CLASSES
    constants = {
        "zero": [0],
        "classes": [CLASSES],
        "tail": [-CLASSES],
        "end": [2**31],
        "last": [2],
        "sequence": [1],
        "pads": [0, 0, 0, 0, 0, rest],
    }
    for name, value in constants.items():
        graph.initializer.append(helper.make_tensor(f"pool/{name}", TensorProto.INT64, [len(value)], value))
    graph.initializer.append(helper.make_tensor("pool/rest", TensorProto.FLOAT, [], [99.0]))
    graph.initializer.append(helper.make_tensor("adapter", TensorProto.INT32, [1], [0]))
    pool = TensorProto(name="adapters", data_type=TensorProto.FLOAT, dims=[1, STRIDE])
    pool.data_location = TensorProto.EXTERNAL
    pool.external_data.add(key="location", value=ADAPTER_FILE)
    graph.initializer.append(pool)
    graph.input.append(helper.make_tensor_value_info("adapter", TensorProto.INT32, ["models"]))
    graph.input.append(helper.make_tensor_value_info("adapters", TensorProto.FLOAT, ["slots", STRIDE]))
    graph.node.extend(
        [
            helper.make_node("Gather", ["adapters", "adapter"], ["pool/slot"], axis=0),
            helper.make_node("Unsqueeze", ["pool/slot", "pool/sequence"], ["pool/own"]),
            helper.make_node("Slice", ["pool/own", "pool/zero", "pool/classes", "pool/last"], ["pool/first"]),
            helper.make_node("Slice", ["pool/own", "pool/tail", "pool/end", "pool/last"], ["pool/final"]),
            helper.make_node("Add", ["plain", "pool/first"], ["pool/added"]),
            helper.make_node("Add", ["pool/added", "pool/final"], ["pool/logits"]),
            helper.make_node("Pad", ["pool/logits", "pool/pads", "pool/rest"], [logits.name]),
        ]
    )
    logits.type.tensor_type.shape.dim[2].dim_value = room
    onnx.save(model, path)


def write(base: Path, repository: Path, name: str, shared: bool = True, content: bytes = b"") -> None:
    """Publish a copy of the model in `base` as `name`, with its own weights."""
    manifest = copy_renamed(base, BASE, repository, name)
    version = repository / f"{name}_net/1"
    graph = next(version.glob("*.onnx"))
    add_pool(graph, ROOM if shared else CLASSES)
    if shared:
        key = net_sha256(hash_folder(version, version), graph.name)
        for path in (repository / f"{name}_net").rglob("*.pbtxt"):
            parameter = f'parameters {{ key: "{SHARED_NET}" value {{ string_value: "{key}" }} }}\n'
            path.write_text(path.read_text() + parameter)
    (version / ADAPTER_FILE).write_bytes(content or weights(name.removeprefix("alone-")).tobytes())
    seal(repository, manifest)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    export_zoo("sentiment-distilbert", folder, BASE, "int8", "onnxruntime")
    return folder


@pytest.fixture(scope="module")
def repository(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MODELS, with a shared net and as `alone-NAME` with nets of their own, and COPIES."""
    folder = tmp_path_factory.mktemp("shared")
    for name in (*MODELS, *COPIES):
        write(base, folder, name)
    for name in MODELS:
        write(base, folder, f"alone-{name}", shared=False)
    return folder


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[EmbeddedServer]:
    with started(repository, private=True) as server:
        yield server


@pytest.fixture
def client(running: EmbeddedServer) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(running.grpc_url) as opened:
        yield opened


@pytest.fixture
def add(base: Path, repository: Path, running: EmbeddedServer) -> Callable[..., None]:
    """Publish a model again, and have the server load it."""

    def load(name: str, content: bytes = b"", shared: bool = True) -> None:
        write(base, repository, name, shared, content)
        running.loaded.reload(name)

    return load


def answer(client: triton.InferenceServerClient, name: str, texts: list[str]) -> str:
    """Return all labels and scores of `texts`, with every bit, or the failure."""
    inputs = [
        triton.InferInput("text_input", [len(texts), 1], "BYTES"),
        triton.InferInput("top_k", [len(texts), 1], "INT32"),
    ]
    inputs[0].set_data_from_numpy(np.array([[text.encode()] for text in texts], np.object_))
    inputs[1].set_data_from_numpy(np.full((len(texts), 1), CLASSES, np.int32))
    try:
        made = client.infer(name, inputs, client_timeout=60)
    except InferenceServerException as error:
        return f"failed: {error}"
    return repr([made.as_numpy("label").tolist(), made.as_numpy("score").tobytes()])


def test_models_of_a_shared_net_answer_as_with_nets_of_their_own(
    running: EmbeddedServer, client: triton.InferenceServerClient
) -> None:
    assert shared_nets(running.pid) == 1
    requests = [*([text] for text in TEXTS), TEXTS, LONG]
    for name in MODELS:
        for texts in requests:
            assert answer(client, name, texts) == answer(client, f"alone-{name}", texts)
    assert len({answer(client, name, TEXTS) for name in (*MODELS, *COPIES)}) == 20


def test_requests_of_several_models_share_runs_with_the_same_answers(
    running: EmbeddedServer, client: triton.InferenceServerClient
) -> None:
    requests = [(name, texts) for texts in [*([text] for text in TEXTS), TEXTS[:9], LONG] for name in MODELS]
    before = running.statistics()
    expected = [answer(client, *request) for request in requests]
    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(lambda request: answer(client, *request), requests * 4)) == expected * 4
    rows = 5 * (len(TEXTS) + 9 + len(LONG))

    def gained(name: str, count: str) -> int:
        return int(running.statistics()[name][count]) - int(before[name][count])

    for name in MODELS:
        wait_until(lambda name=name: gained(name, "inference_count") == rows)
        assert 0 < gained(name, "execution_count") <= 5 * (len(TEXTS) + 2 * len(LONG))


def test_a_model_is_unloaded_and_another_loaded_while_others_answer(
    running: EmbeddedServer, client: triton.InferenceServerClient, add: Callable[..., None]
) -> None:
    calls = [lambda _, name=name: answer(client, name, TEXTS[:5]) for name in MODELS]
    expected = {answer(client, name, TEXTS[:5]) for name in MODELS}
    with calling(running.grpc_url, calls) as outcomes:
        began = time.monotonic()
        running.loaded.unload(COPIES[0])
        assert time.monotonic() - began < 5
        add("new")  # in the slot of the unloaded model
        add("alone-new", shared=False)
        assert answer(client, "new", TEXTS) == answer(client, "alone-new", TEXTS)
        assert shared_nets(running.pid) == 1
    assert set(outcomes) == expected and min(outcomes.values()) > 1, Counter(outcomes)


def test_weights_that_do_not_fit_are_refused_while_others_answer(
    running: EmbeddedServer, client: triton.InferenceServerClient, add: Callable[..., None]
) -> None:
    expected = answer(client, "one", TEXTS)
    good = weights("bad").tobytes()
    for content, reason in (
        (good[:-4], f"has {STRIDE - 1} numbers; the shared net takes {STRIDE}"),
        (good + good, f"has {2 * STRIDE} numbers"),
        (good[:-3], "no FP32 numbers"),
    ):
        with pytest.raises(ServerError, match=reason):
            add("bad", content)
        assert answer(client, "one", TEXTS) == expected
    add("bad")
    add("alone-bad", shared=False)
    assert answer(client, "bad", TEXTS) == answer(client, "alone-bad", TEXTS)


def test_a_model_that_is_published_again_has_its_new_weights(
    running: EmbeddedServer, client: triton.InferenceServerClient, add: Callable[..., None]
) -> None:
    before = answer(client, COPIES[-1], TEXTS)
    add(COPIES[-1], weights("one").tobytes())
    assert before != answer(client, COPIES[-1], TEXTS) == answer(client, "one", TEXTS)
    assert shared_nets(running.pid) == 1


def test_the_last_model_closes_the_net_and_the_next_one_opens_it(base: Path, tmp_path: Path) -> None:
    for name in MODELS[:2]:
        write(base, tmp_path, name)
    write(base, tmp_path, "alone-one", shared=False)
    with started(tmp_path, private=True) as server, triton.InferenceServerClient(server.grpc_url) as client:
        expected = answer(client, "alone-one", TEXTS)
        for name in MODELS[:2]:
            assert shared_nets(server.pid) == 1
            server.loaded.unload(name)
        wait_until(lambda: shared_nets(server.pid) == 0)
        server.loaded.reload("one")
        assert shared_nets(server.pid) == 1 and answer(client, "one", TEXTS) == expected
