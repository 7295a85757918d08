"""Scores that are edited and ranked on a device (here the CPU) are those of the host; so are an engine's answers."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SomeRows
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hfx.exporter.generation.engine_folder import write_engine_folder
from hfx.exporter.graph.generator import choose_graph, log_softmax_graph
from hfx.exporter.quantize.generator import FORMATS
from hfx.python_backends.engine import reference, staging
from hfx.python_backends.engine.device_memory import Device, DeviceArray
from hfx.python_backends.engine.jobs import Sequence, new_job
from hfx.python_backends.engine.partition import Outputs
from hfx.python_backends.engine.placement import Cuda
from hfx.python_backends.engine.request import Event, Request, Settings
from hfx.python_backends.engine.scores import DeviceScores, HostScores
from hfx.python_backends.engine.search import Search
from hfx.python_backends.engine.spec import EngineSpec, read_spec
from hfx.python_backends.errors import StepFailed
from tests.rigs.checkpoints import tiny_generators, torch_decoding
from tests.rigs.engine import engine_oracle, random_grammars
from tests.rigs.engine import engine_toys as toys
from tests.rigs.engine.watched_engine import ONE_THREAD, random_request
from tests.rigs.machine.cuda_driver import Driver
from tests.rigs.machine.waiting import wait_until
from tests.unit.python_backends.test_engine_device import engine_on

Picks = Mapping[Sequence, SomeRows[int]]
EVERY_ID = tuple(range(toys.VOCABULARY))
ERASED = -1e6
SLOTS = 40


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def device(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose sessions run on the CPU."""
    driver.open_sessions(monkeypatch)
    monkeypatch.setattr(staging, "SHARE", 1)  # of so small a cache, a quarter would be one row
    return driver.device()


def written(folder: Path, vocabulary: int) -> EngineSpec:
    """Return the spec of a model with the graphs that choose from `vocabulary` tokens."""
    spec = read_spec(toys.write_decoder(folder, chooses=True))
    log_softmax_graph(folder / "log_softmax.onnx", vocabulary)
    choose_graph(folder / "choose.onnx", vocabulary)
    return replace(spec, vocab_size=vocabulary)


def opened(spec: EngineSpec, device: Device) -> DeviceScores:
    scores = Cuda(ONE_THREAD, device).scores(spec, SLOTS)
    assert isinstance(scores, DeviceScores)
    return scores


def outputs_of(logits: np.ndarray | DeviceArray) -> Outputs:
    """Return the outputs of a run that has these logits."""
    return Outputs(np.empty((0, 1), np.int64), logits)


def uploaded(device: Device, logits: np.ndarray) -> Outputs:
    """Return the outputs of a run that has these logits on a device."""
    memory = device.allocate(logits.shape, np.float32)
    copy = np.ascontiguousarray(logits)
    device.copier.upload(copy.ctypes.data, memory.address, copy.nbytes)
    device.copier.synchronize()
    return outputs_of(memory)


def random_searches(rng: random.Random, vocabulary: int) -> tuple[Sequence, ...]:
    """Return the searches of a random request that need scores, after 0 to 3 steps; none if a search is over then."""
    ids = lambda low, high: tuple(rng.randrange(vocabulary) for _ in range(rng.randint(low, high)))  # noqa: E731
    settings: dict[str, Any] = {
        "max_tokens": 9,
        "min_tokens": rng.choice((0, 9)),
        "eos_ids": ids(0, 2),
        "repetition_penalty": rng.choice((1.0, 1.3, 0.7)),
        "frequency_penalty": rng.choice((0, 0.6)),
        "presence_penalty": rng.choice((0, -0.7)),
        "logit_bias": rng.choice(((), {id: rng.uniform(-3, 3) for id in ids(1, 4)})),
        "no_repeat_ngram_size": rng.choice((0, 1, 2, 3)),
        "suppress_ids": ids(0, 2),
        "begin_suppress_ids": ids(0, 2),
        "bad_words_ids": [ids(1, 2) for _ in range(rng.randint(0, 4))],
    }
    kind = rng.choice(("greedy", "beams", "beams", "sampled"))
    if kind == "beams":
        settings["num_beams"] = rng.randint(2, 4)
    if kind == "sampled":
        settings |= {"do_sample": True, "top_k": rng.choice((1, 5, 50)), "num_return_sequences": rng.randint(1, 2)}
    prompt = tuple(rng.randrange(min(vocabulary, 9)) for _ in range(rng.randint(1, 30)))  # repeats n-grams
    job = new_job(Request(prompt, Settings(**settings)), has_encoder=False)
    noise = np.random.default_rng(rng.randrange(1 << 30))
    for sequence in job.sequences:
        for _ in range(rng.randint(0, 3)):
            logits = noise.normal(0, 3, (sequence.search.rows, vocabulary)).astype(np.float32)
            try:
                if reference.one_step(sequence.search, logits).completions:
                    return ()
            except StepFailed:  # no token is left
                return ()
    return tuple(each for each in job.sequences if each.search.candidates)


def random_batch(rng: random.Random, vocabulary: int, rows: int) -> Picks:
    """Return searches with about `rows` rows in all; the rows of a search are in any order, or are the same."""
    picks: dict[Sequence, tuple[int, ...]] = {}
    first = 0
    while first < rows:
        for sequence in random_searches(rng, vocabulary):
            own = list(range(first, first + sequence.search.rows))
            rng.shuffle(own)
            picks[sequence] = tuple(own if rng.random() < 0.7 else own[:1] * len(own))
            first += len(own)
    return dict(rng.sample(list(picks.items()), len(picks)))


def assert_same(spec: EngineSpec, scores: DeviceScores, outputs: Outputs, logits: np.ndarray, picks: Picks) -> None:
    on_host = HostScores(spec, sum(map(len, picks.values())), ONE_THREAD).best(outputs_of(logits), picks)
    on_device = scores.best(outputs, picks)
    assert on_host.keys() == on_device.keys() == picks.keys()
    for sequence, best in on_host.items():
        found, count = on_device[sequence], sequence.search.candidates
        assert isinstance(best, tuple)
        assert isinstance(found, tuple)
        for got, wanted in zip(found, best, strict=True):
            assert got is not None
            assert wanted is not None
            np.testing.assert_array_equal(got[:, :count], wanted[:, :count])


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("vocabulary", "rows"), [(12, 1), (12, 64), (60, 9), (60, 33), (50265, 1), (50265, 32)])
def test_a_device_finds_the_scores_and_ids_of_the_host_to_the_bit(
    tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch, vocabulary: int, rows: int, ties: bool
) -> None:
    monkeypatch.setattr("hfx.python_backends.engine.scores.MOST_BOUND", 2)
    spec, rng = written(tmp_path, vocabulary), random.Random(rows)
    scores = opened(spec, device)
    for case in range(2 if vocabulary > 60 else 25):
        picks = random_batch(rng, vocabulary, rows)
        assert all(DeviceScores.takes(sequence.search) for sequence in picks)
        noise = np.random.default_rng(case)
        logits = noise.normal(0, 3, (max(map(max, picks.values())) + 3, vocabulary)).astype(np.float32)
        if ties:
            logits = np.round(logits)
        logits[noise.random(logits.shape) < 0.1] = -np.inf
        assert_same(spec, scores, uploaded(device, logits), logits, picks)
        assert len(scores._runs) <= 2


def test_steps_of_the_same_requests_replay_few_graphs(tmp_path: Path, device: Device) -> None:
    spec, noise = written(tmp_path, 60), np.random.default_rng(0)
    scores, settings = opened(spec, device), Settings(max_tokens=40, num_beams=4, no_repeat_ngram_size=2)
    jobs = [new_job(Request((at, at + 1), settings), has_encoder=False) for at in range(5)]
    picks = {job.sequences[0]: range(4 * at, 4 * at + 4) for at, job in enumerate(jobs)}
    outputs = uploaded(device, np.zeros((20, 60), np.float32))
    assert isinstance(outputs.memory, DeviceArray)
    for _ in range(30):
        logits = noise.normal(0, 3, (20, 60)).astype(np.float32)
        device.copier.upload(logits.ctypes.data, outputs.memory.address, logits.nbytes)
        assert_same(spec, scores, outputs, logits, picks)
        for sequence, best in scores.best(outputs, picks).items():
            assert isinstance(best, tuple)
            sequence.search.choose(*best)
    assert len(scores._runs) <= 4
    assert all(run._binding.captured for run in scores._runs.values())


def test_equal_scores_are_in_the_order_of_their_ids_whatever_the_devices_order(tmp_path: Path, device: Device) -> None:
    """The graph is changed to return its best scores in reverse."""
    spec = written(tmp_path, 60)
    model = onnx.load(tmp_path / "choose.onnx")
    for tensor in model.graph.node[-1].output[:]:
        model.graph.node.append(onnx.helper.make_node("Slice", [f"{tensor}.0", "end", "stop", "one", "back"], [tensor]))
    model.graph.node[-3].output[:] = [f"{tensor}.0" for tensor in ("values", "ids")]
    for name, value in (("end", -1), ("stop", -(2**31)), ("one", 1), ("back", -1)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [1], [value]))
    onnx.save(model, tmp_path / "choose.onnx")
    rng = random.Random(0)
    picks = random_batch(rng, 60, 20)
    logits = np.random.default_rng(0).integers(-2, 3, (30, 60)).astype(np.float32)
    assert_same(spec, opened(spec, device), uploaded(device, logits), logits, picks)


def test_a_search_whose_edits_fail_does_not_affect_the_others(tmp_path: Path, device: Device) -> None:
    """A history that is too long for its memory stands for any failure."""
    spec = written(tmp_path, 12)
    jobs = [new_job(Request((1, 2), Settings(num_beams=2, repetition_penalty=2.0)), False) for _ in range(3)]
    sequences = [job.sequences[0] for job in jobs]
    sequences[1].search._ids = None  # type: ignore[attr-defined]
    logits = np.random.default_rng(0).normal(0, 1, (6, 12)).astype(np.float32)
    picks = {sequence: (2 * at, 2 * at + 1) for at, sequence in enumerate(sequences)}
    scores = opened(spec, device)
    assert isinstance(scores.best(uploaded(device, logits), picks)[sequences[1]], StepFailed)
    assert isinstance(scores.best(uploaded(device, logits), {sequences[1]: (0, 1)})[sequences[1]], StepFailed)
    good = {sequence: rows for sequence, rows in picks.items() if sequence is not sequences[1]}
    assert_same(spec, scores, uploaded(device, logits), logits, good)


def requests_of_all_kinds(rng: random.Random, has_encoder: bool) -> Iterator[Request]:
    """Return random requests, some of them with forced tokens or structured output."""
    for at in range(40):
        request = random_request(rng, has_encoder)
        settings = request.settings
        if at % 4 == 1:
            settings = replace(settings, forced_bos_id=5, forced_eos_id=7)
        if at % 8 == 2:
            settings = replace(settings, new_matcher=random_grammars.some_ids(toys.VOCABULARY, (3,)), eos_ids=(3,))
        if at % 8 == 6 and settings.num_beams > 1:
            settings = replace(settings, renormalize_logits=True)
        yield replace(request, settings=settings)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("has_encoder", [False, True])
def test_an_engine_with_logits_on_a_device_answers_as_on_the_host(
    tmp_path: Path, driver: Driver, device: Device, has_encoder: bool, seed: int
) -> None:
    folder = (toys.write_encoder_decoder if has_encoder else toys.write_decoder)(tmp_path, chooses=True)
    requests = list(requests_of_all_kinds(random.Random(seed), has_encoder))
    wanted = [engine_oracle.expected(request) for request in requests]
    before = driver.allocated
    with engine_on(driver, folder) as engine:
        jobs = [engine.submit(request) for request in requests]
        for job in jobs[::5]:
            job.cancel()
        answers = [job.result(60) for job in jobs]
    for at, (answer, one) in enumerate(zip(answers, wanted, strict=True)):
        if at % 5:
            assert [each.ids for each in answer] == [each.ids for each in one]
            for each, other in zip(answer, one, strict=True):
                assert each.log_probs == pytest.approx(other.log_probs, abs=1e-5)
                assert each.score == pytest.approx(other.score, abs=1e-5)
    wait_until(lambda: driver.allocated <= before, "the memory's release")


def needs_few_scores(request: Request) -> bool:
    settings = request.settings
    return not settings.log_probs and not (settings.do_sample and settings.top_k == 0)


@pytest.mark.parametrize("has_encoder", [False, True])
def test_logits_stay_on_the_device_if_the_best_scores_are_enough(
    tmp_path: Path, driver: Driver, device: Device, has_encoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = (toys.write_encoder_decoder if has_encoder else toys.write_decoder)(tmp_path, chooses=True)
    rng = random.Random(0)
    requests = list(filter(needs_few_scores, (random_request(rng, has_encoder) for _ in range(40))))
    monkeypatch.delattr(DeviceArray, "download")
    with engine_on(driver, folder) as engine:
        answers = [job.result(60) for job in [engine.submit(request) for request in requests]]
    wanted = [engine_oracle.expected(request) for request in requests]
    assert [[each.ids for each in answer] for answer in answers] == [[each.ids for each in one] for one in wanted]


def test_a_search_without_tokens_left_fails_alone(tmp_path: Path, driver: Driver, device: Device) -> None:
    folder = toys.write_decoder(tmp_path, chooses=True)
    with engine_on(driver, folder) as engine:
        good = Request((1, 2), Settings(max_tokens=9, num_beams=3, no_repeat_ngram_size=1))
        bad = replace(good, settings=replace(good.settings, suppress_ids=EVERY_ID))
        jobs = [engine.submit(request) for request in (good, bad)]
        assert [each.ids for each in jobs[0].result(60)] == [each.ids for each in engine_oracle.expected(good)]
        with pytest.raises(StepFailed, match="no token is left to choose"):
            jobs[1].result(60)


def driven(
    scores: DeviceScores, device: Device, model: torch_decoding.TorchModel, prompt: tuple[int, ...], settings: Settings
) -> tuple[Event, ...]:
    """Return the answer to a request on the logits of `model`, whose scores `device` edits and ranks."""
    (sequence,) = new_job(Request(prompt, settings), has_encoder=False).sequences

    def step_of(search: Search, logits: np.ndarray) -> Any:
        if not search.candidates:
            return reference.one_step(search, logits)
        found = scores.best(uploaded(device, logits), {sequence: range(len(logits))})[sequence]
        assert isinstance(found, tuple)
        return search.choose(*found)

    return reference.drive(sequence.search, lambda rows: model.logits(prompt, rows), step_of)[1]


@pytest.mark.slow
@pytest.mark.parametrize("family", torch_decoding.FAMILIES)
def test_answers_from_a_devices_scores_equal_transformers_for_random_settings(
    tmp_path: Path, device: Device, family: str
) -> None:
    model, noise = torch_decoding.torch_model(family), np.random.default_rng(1)
    scores = opened(written(tmp_path, torch_decoding.VOCABULARY), device)
    for case in range(40):
        beams = int(noise.integers(1, 6))
        settings = torch_decoding.random_settings(model, noise, num_beams=beams, num_return_sequences=beams)
        settings = settings if beams > 1 else replace(settings, length_penalty=1.0, early_stopping=False)
        prompt = model.prompt(case)
        expected = model.generate(prompt, settings)
        completions = driven(scores, device, model, prompt, settings)
        for at, completion in enumerate(completions):
            # transformers leaves the order of erased scores open.
            if completion.score is None or completion.score > ERASED:
                assert list(completion.ids) == expected.new_ids[at][: len(completion.ids)], (prompt, settings)
                if completion.score is not None:
                    wanted = float(expected.sequences_scores[at])
                    assert completion.score == pytest.approx(wanted, rel=1e-5, abs=1e-6), settings


def test_only_folders_for_gpus_have_the_graph(tmp_path: Path) -> None:
    checkpoint = tiny_generators.save(tmp_path, tiny_generators.build("gpt2"))
    for precision in ("fp16", "fp32", "int8"):
        spec = write_engine_folder(checkpoint, tmp_path / precision, FORMATS[precision], 127)
        assert (tmp_path / precision / "choose.onnx").exists() is (precision == "fp16")
        assert (spec.files.choose is not None) is (precision == "fp16")


def test_a_folder_of_an_earlier_version_is_named_in_one_log_line(
    tmp_path: Path, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    spec = read_spec(toys.write_decoder(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert isinstance(Cuda(ONE_THREAD, device).scores(spec, SLOTS), HostScores)
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path} has no graph for choices")
