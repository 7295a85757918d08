"""The engine on a device, which is the CPU behind the calls of CUDA's driver, and captured graphs as ONNX Runtime's."""

from __future__ import annotations

import gc
import logging
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.graph.generator import top_k_graph
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine import invariants, staging
from hfx.python_backends.engine.captures import ASSIGNMENT, nodes_elsewhere
from hfx.python_backends.engine.core import Core
from hfx.python_backends.engine.device_memory import DeviceArray
from hfx.python_backends.engine.engine import Engine, EngineSettings
from hfx.python_backends.engine.fair_scheduler import FairScheduler
from hfx.python_backends.engine.jobs import Job
from hfx.python_backends.engine.picker import Picker
from hfx.python_backends.engine.placement import Cuda
from hfx.python_backends.engine.plan import Limits, Span, padded
from hfx.python_backends.engine.request import Request, Settings
from hfx.python_backends.engine.runners import DecoderRunner, Runner, new_runner
from hfx.python_backends.engine.runtimes import open_runner
from hfx.python_backends.engine.scores import HostScores
from hfx.python_backends.engine.spec import read_spec
from hfx.python_backends.errors import DeviceLost, EngineClosed, StepFailed
from tests.rigs.checkpoints import tiny_generators
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.engine_oracle import expected
from tests.rigs.engine.watched_engine import ONE_THREAD, random_request, random_tokens, serve
from tests.rigs.machine.cuda_driver import Driver
from tests.rigs.machine.waiting import wait_until

SLOTS = 6
# Functions of the driver that a served request calls.
CALLS = ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpy3DAsync_v2", "cuStreamSynchronize", "cuCtxSetCurrent")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The folders of toys without and with an encoder."""
    root = tmp_path_factory.mktemp("toys")
    return {False: toys.write_decoder(root / "decoder"), True: toys.write_encoder_decoder(root / "encoder-decoder")}


@pytest.fixture(autouse=True)
def sessions(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.open_sessions(monkeypatch)
    monkeypatch.setattr(staging, "SHARE", 1)  # of so small a cache, a quarter would be one row


def open_on(driver: Driver, folder: Path, slots: int = SLOTS) -> Runner:
    """Return a runner of the folder on the device."""
    spec = read_spec(folder)
    return new_runner(spec, slots, Cuda(ONE_THREAD, driver.device()))


def engine_on(driver: Driver, folder: Path, slots: int = SLOTS) -> Engine:
    spec = read_spec(folder)
    return Engine.of(open_on(driver, folder, slots), spec, EngineSettings(slots=slots, max_queue=1000))


def answers_of(engine: Engine, requests: list[Request], rng: random.Random) -> list[Any]:
    """Return the ids of each request; they arrive at random times, and some others are cancelled."""
    jobs: list[Job] = []
    for request in requests:
        jobs.append(engine.submit(request))
        if rng.random() < 0.3:
            engine.submit(request).cancel()
        if rng.random() < 0.3:
            time.sleep(rng.random() / 100)
    return [[event.ids for event in job.result(60)] for job in jobs]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_encoder", [False, True])
def test_requests_of_all_kinds_answer_as_computed_by_hand(
    driver: Driver, toy: dict[bool, Path], has_encoder: bool, seed: int
) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng, has_encoder) for _ in range(32)]
    with engine_on(driver, toy[has_encoder]) as engine:
        answers = answers_of(engine, requests, rng)
        stats = engine.stats()
    assert answers == [[event.ids for event in expected(request)] for request in requests]
    assert stats.steps_captured > 0
    assert not stats.capture_refusal
    assert stats.device_cache_bytes > 0
    if not has_encoder:
        assert 0 < stats.prompts_captured <= sum(stats.prompt_runs.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("has_encoder", [False, True])
def test_steps_that_begin_before_they_are_planned_change_no_answer(
    driver: Driver, toy: dict[bool, Path], has_encoder: bool, seed: int
) -> None:
    rng = random.Random(seed)
    requests = [greedy_request(rng, has_encoder) for _ in range(40)]
    with engine_on(driver, toy[has_encoder]) as engine:
        answers = answers_of(engine, requests, rng)
        stats = engine.stats()
    assert answers == [[event.ids for event in expected(request)] for request in requests]
    assert 0 < stats.steps_ahead < stats.steps


def greedy_request(rng: random.Random, has_encoder: bool) -> Request:
    settings: dict[str, Any] = {"max_tokens": rng.randint(1, 25), "eos_ids": random_tokens(rng, 0, 1)}
    if has_encoder:
        settings["decoder_prompt"] = random_tokens(rng, 1, 3)
    return Request(random_tokens(rng, 1, 34), Settings(**settings))


class Rows:
    """The rows of a runner, and what each was fed: its history, of which the last token is the next input."""

    def __init__(self, runner: DecoderRunner, rng: random.Random) -> None:
        self.runner, self.partition, self.rng = runner, runner.partition, rng
        self.histories: list[list[int]] = []
        self.append()

    def change(self) -> None:
        """Change something, or nothing."""
        changes = [lambda: None, lambda: None, self.append, self.end, self.token, self.copy, self.move, self.part]
        self.rng.choice(changes)()

    def append(self) -> None:
        if len(self.histories) < SLOTS:
            self.histories.append([])
            self.prompt(len(self.histories) - 1)

    def prompt(self, row: int) -> None:
        prompt = random_tokens(self.rng, 1, 9)
        outputs = self.runner.run([Span(prompt, rows=(row,))], logits=False)
        self.histories[row] = [*prompt, int(outputs.next_ids[0, 0])]
        self.partition.set_next_tokens([(row, self.histories[row][-1])])

    def end(self) -> None:
        if len(self.histories) > 1:
            self.histories.pop()

    def token(self) -> None:
        row = self.rng.randrange(len(self.histories))
        self.histories[row][-1] = self.rng.randrange(toys.VOCABULARY)
        self.partition.set_next_tokens([(row, self.histories[row][-1])])

    def copy(self) -> None:
        if len(self.histories) > 1:
            one, other = self.rng.sample(range(len(self.histories)), 2)
            self.partition.reorder_cache([(one, other)])
            if len(self.histories[one]) != len(self.histories[other]):
                self.partition.start(other, len(self.histories[one]) - 1)
            self.histories[other] = [*self.histories[one][:-1], self.histories[other][-1]]

    def move(self) -> None:
        if len(self.histories) > 1:
            self.partition.move(len(self.histories) - 1, 0)
            self.histories[0] = self.histories.pop()

    def part(self) -> None:
        self.runner.run([Span(random_tokens(self.rng, 1, 9))], logits=False)  # of a prompt that has no row yet

    def step(self) -> None:
        outputs = self.partition.step(len(self.histories), logits=self.rng.random() < 0.1)
        for history, logits in zip(self.histories, () if outputs.logits is None else outputs.logits, strict=False):
            assert (logits == toys.logits(history)).all()
        assert outputs.next_ids[:, 0].tolist() == [toys.target(history) for history in self.histories]
        for row, token in enumerate(outputs.next_ids[:, 0].tolist()):
            self.histories[row].append(token)
            if len(self.histories[row]) == toys.MAX_LENGTH:
                self.prompt(row)


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_was_begun_has_no_effect_if_anything_changes(
    driver: Driver, toy: dict[bool, Path], seed: int
) -> None:
    """Random changes between steps, and steps begun before them."""
    rng = random.Random(seed)
    runner = open_on(driver, toy[False])
    assert isinstance(runner, DecoderRunner)
    rows = Rows(runner, rng)
    for _ in range(150):
        rows.step()
        if rng.random() < 0.7:
            rows.partition.begin_next_step(len(rows.histories))
        rows.change()
    assert 0 < runner.placement.counts.steps_ahead < 100


@pytest.mark.parametrize("seed", range(2))
def test_prompts_in_parts_answer_as_computed_by_hand(driver: Driver, toy: dict[bool, Path], seed: int) -> None:
    rng = random.Random(seed)
    requests = [random_request(rng, has_encoder=False) for _ in range(24)]
    scheduler = FairScheduler(SLOTS, has_encoder=False, limits=Limits(chunk=8, prefill=32))
    picker = Picker(HostScores(read_spec(toy[False]), SLOTS, ONE_THREAD))
    core = Core(scheduler, (open_on(driver, toy[False]),), picker, lambda _, state: invariants.check(state))
    with serve(toy[False], core) as engine:
        answers = answers_of(engine, requests, rng)
    assert answers == [[event.ids for event in expected(request)] for request in requests]


@pytest.mark.parametrize("name", ["gpt2", "bart", "t5-gated"])
def test_files_for_gpus_answer_as_with_all_memory_on_the_host(tmp_path: Path, driver: Driver, name: str) -> None:
    """Sources stay on the device, and rows are copied there."""
    folder = tmp_path / "engine"
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build(name))
    spec = write_engine_folder(checkpoint, folder, FORMATS["fp16"], 127)
    rng = random.Random(0)
    requests = [tiny_request(rng, spec.vocab_size, spec.has_encoder) for _ in range(24)]
    settings = EngineSettings(slots=SLOTS, max_queue=1000)
    with Engine.of(open_runner(spec, SLOTS, ONE_THREAD), spec, settings) as engine:
        wanted = answers_of(engine, requests, rng)
    with engine_on(driver, folder) as engine:
        answers = answers_of(engine, requests, rng)
        stats = engine.stats()
    assert answers == wanted
    assert stats.steps_captured > 0
    assert stats.prompts_captured > 0


def test_log_probabilities_of_prompts_are_those_of_the_host(tmp_path: Path, driver: Driver) -> None:
    """A prompt runs in parts, with logits for each token, beside requests whose runs are captured."""
    folder = tmp_path / "engine"
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("gpt2", n_positions=200))
    spec = write_engine_folder(checkpoint, folder, FORMATS["fp16"], 127)
    rng = random.Random(0)
    prompts = [tuple(rng.choices(range(spec.vocab_size), k=length)) for length in (1, 2, 64, 65, 130, 190)]
    requests = [
        Request(each, Settings(max_tokens=4, prompt_log_probs=count)) for each in prompts for count in (3, None)
    ]
    found = []
    for engine in (Engine.of(open_runner(spec, SLOTS, ONE_THREAD), spec, EngineSettings(SLOTS)), None):
        with engine or engine_on(driver, folder) as opened:
            jobs = [opened.submit(request) for request in requests]
            found.append([event for job in jobs for event in job])
    on_host, on_device = found
    assert [(each.of_prompt, each.ids) for each in on_device] == [(each.of_prompt, each.ids) for each in on_host]
    assert sum(len(each.ids) for each in on_device if each.of_prompt) == sum(map(len, prompts))
    for one, other in zip(on_device, on_host, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        assert [[number for number, _ in top] for top in one.top] == [
            [number for number, _ in top] for top in other.top
        ]


def tiny_request(rng: random.Random, vocabulary: int, has_encoder: bool) -> Request:
    settings: dict[str, Any] = {"max_tokens": rng.randint(1, 12)}
    kind = rng.choice(("greedy", "beams", "sampled"))
    if kind == "beams":
        settings |= {"num_beams": 2, "num_return_sequences": rng.randint(1, 2)}
    if kind == "sampled":
        settings |= {"do_sample": True, "top_k": 5, "num_return_sequences": 2, "seed": rng.randrange(100)}
    if has_encoder:
        settings["decoder_prompt"] = (2,)
    prompt = tuple(rng.randrange(3, vocabulary) for _ in range(rng.randint(1, 40)))
    return Request(prompt, Settings(**settings))


def test_a_capture_that_fails_is_logged_once_and_the_answers_are_the_same(
    driver: Driver, toy: dict[bool, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver.open_sessions(monkeypatch, refuses=lambda captured: captured >= 2)
    rng = random.Random(0)
    requests = [random_request(rng, has_encoder=False) for _ in range(16)]
    with caplog.at_level(logging.WARNING), engine_on(driver, toy[False]) as engine:
        answers = answers_of(engine, requests, rng)
        stats = engine.stats()
    assert answers == [[event.ids for event in expected(request)] for request in requests]
    assert stats.capture_refusal == "operation not permitted when stream is capturing"
    assert [record.message for record in caplog.records if "captured" in record.message] == [
        "decoder.onnx is not captured as CUDA graphs, so its operators are started one by one: "
        "operation not permitted when stream is capturing"
    ]


def test_nodes_that_prevent_a_capture_are_named(tmp_path: Path) -> None:
    import onnxruntime

    top_k_graph(tmp_path / "graph.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(ASSIGNMENT, "1")
    session = onnxruntime.InferenceSession(tmp_path / "graph.onnx", options, ["CPUExecutionProvider"])
    assert nodes_elsewhere(session, "CPUExecutionProvider") == ""
    assert nodes_elsewhere(session, "CUDAExecutionProvider") == " (1 nodes run on the CPU: TopK.0 (TopK))"


def test_logits_stay_on_the_device_until_they_are_read(driver: Driver, toy: dict[bool, Path]) -> None:
    runner = open_on(driver, toy[False])
    assert isinstance(runner, DecoderRunner)
    prompts = ((3, 5, 7, 11, 2), (9, 1), (4,))
    outputs = runner.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
    wanted = np.stack([toys.logits(prompt) for prompt in prompts])
    assert isinstance(outputs.memory, DeviceArray)
    assert outputs.memory.shape == wanted.shape
    assert (outputs.memory[1:3].download() == wanted[1:]).all()
    with driver.failing("cuMemcpyDtoHAsync_v2", 1):
        outputs.first(2)
    assert outputs.logits is not None
    assert (outputs.logits == wanted).all()
    assert (outputs.first(2).logits == wanted[:2]).all()
    assert runner.run([Span((1,), rows=(0,))], logits=False).logits is None


def test_more_prompts_than_the_staging_memory_has_rows_are_run_one_after_the_other(
    driver: Driver, toy: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SHARE", 1 / 4)
    runner = open_on(driver, toy[False], slots=8)
    assert isinstance(runner, DecoderRunner)
    assert isinstance(runner.prompts, staging.PromptStage)
    assert runner.prompts.rows == 2  # of as many positions as the cache's, which is a quarter of its 9 rows
    prompts = [tuple((7 * at + seed) % toys.VOCABULARY for at in range(3 + seed)) for seed in range(7)]
    outputs = runner.run([Span(prompt, rows=(row,)) for row, prompt in enumerate(prompts)], logits=True)
    assert outputs.next_ids[:, 0].tolist() == [toys.target(prompt) for prompt in prompts]
    assert outputs.logits is not None
    assert (outputs.logits == np.stack([toys.logits(prompt) for prompt in prompts])).all()
    assert runner.placement.counts.prompt_runs == {(2, 16): 3, (1, 16): 1}
    step = runner.partition.step
    runner.partition.set_next_tokens([(row, row) for row in range(7)])
    assert step(7, logits=False).next_ids[:, 0].tolist() == [
        toys.target((*prompt, row)) for row, prompt in enumerate(prompts)
    ]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("has_encoder", [False, True])
def test_a_lost_device_closes_the_engine_and_no_request_hangs(
    driver: Driver, toy: dict[bool, Path], has_encoder: bool, call: str
) -> None:
    lost = threading.Event()
    settings = {"max_tokens": 40, **({"decoder_prompt": (2,)} if has_encoder else {})}
    with engine_on(driver, toy[has_encoder]) as engine:
        engine.call_when_failed(lambda failure: lost.set())
        engine.submit(Request((1, 2, 3), Settings(**settings))).result(60)
        with driver.failing(call, 719):
            for at in range(9):
                with pytest.raises((EngineClosed, DeviceLost), match="GPU 0 can't be used by this process any longer"):
                    engine.submit(Request((1, 2, at), Settings(num_beams=1 + at % 2, **settings))).result(60)
            assert lost.wait(60)
        assert not engine.is_working()
        with pytest.raises(EngineClosed, match="hfx serve starts the model again"):
            engine.submit(Request((1, 2, 3), Settings(**settings)))


def test_an_error_that_a_device_survives_ends_only_the_requests_of_its_run(
    driver: Driver, toy: dict[bool, Path]
) -> None:
    lost = threading.Event()
    request = Request((1, 2, 3), Settings(max_tokens=4))
    with engine_on(driver, toy[False]) as engine:
        engine.call_when_failed(lambda failure: lost.set())
        wanted = engine.submit(request).result(60)
        with driver.failing("cuMemcpyHtoDAsync_v2", 1), pytest.raises(StepFailed, match="CUDA's error 1"):
            engine.submit(request).result(60)
        assert engine.submit(request).result(60) == wanted
        assert engine.is_working()
    assert not lost.is_set()


def test_all_memory_is_given_back_when_the_engine_closes(driver: Driver, toy: dict[bool, Path]) -> None:
    for has_encoder in (False, True):
        gc.collect()  # engines of other tests still have memory
        before = driver.allocated
        settings = {"decoder_prompt": (2,)} if has_encoder else {}
        with engine_on(driver, toy[has_encoder]) as engine:
            engine.submit(Request((1, 2, 3), Settings(max_tokens=4, num_beams=2, **settings))).result(60)
            assert driver.allocated > before
        wait_until(lambda before=before: driver.allocated <= before, "the memory's release")  # type: ignore[misc]


@pytest.mark.parametrize("unit", [1, 16])
def test_runs_have_few_sizes_that_waste_little(unit: int) -> None:
    sizes = {padded(count, unit) for count in range(1, 64 * unit + 1)}
    assert sorted(size // unit for size in sizes) == [
        *(1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)
    ]  # fmt: skip
    assert all(count <= padded(count, unit) for count in range(1, 64 * unit + 1))
    assert padded(5 * unit, unit, 5 * unit + 1) == 5 * unit + 1
