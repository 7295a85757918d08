"""`python -m bench.gpu_check PHASE...`: what works on a GPU, a few lines for each phase, in the order given.

A phase that fails does not end the check; the exit code is then 1. `export` comes before the phases that serve its
models. `--device cpu --quick` runs everything but the full GPU on a machine without one, to find mistakes before a GPU
is used. `bench` measures ("bench:served,gpt2" some works).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import gpu
from bench.cases import Served
from bench.exports import BOTH, NAME
from bench.figures import gpu_facts, number
from hfx.client import Client
from hfx.errors import HfxError
from hfx.names import GENERATION_TASKS, STREAM_SUFFIX, TEXT_INPUT
from hfx.perf.load import parse_lengths, synthetic
from hfx.perf.server import metrics
from hfx.repository import models
from tests.rigs.machine.waiting import wait_until
from tests.rigs.servers.serve_process import HFX, ServeProcess, post, serving

TEXTS, CALLERS, CLOSE = 2000, 64, 5e-3  # of the comparison of one hop with the steps; the largest difference of scores
PROMPTS, TURNS = ((7, 8), (5, 40)), 5  # least and most tokens of 32 prompts at once
CAPTURED = 0.9  # least share of captured steps
LEFT_MIB = 300  # of a GPU that is nearly full
FILL = (
    "import torch\n"
    "free = torch.cuda.mem_get_info()[0]\n"
    f"kept = torch.empty(max(0, free - {LEFT_MIB << 20}), dtype=torch.uint8, device='cuda')\n"
    "print('full', flush=True)\n"
    "input()\n"
)
BEGAN = time.monotonic()


@dataclass(frozen=True)
class Check:
    """The options. `checkpoints` is a folder of trained checkpoints, `work` one for what they become."""

    device: str
    quick: bool
    checkpoints: Path
    work: Path

    @property
    def repository(self) -> Path:
        """The exports of `checkpoints`."""
        return self.work / "real"

    def of_kind(self, generates: bool) -> list[str]:
        """Return the generators, or the other models, of `repository`."""
        found = [each for each in models(self.repository) if each.manifest]
        return [each.name for each in found if (each.manifest.task in GENERATION_TASKS) is generates]  # type: ignore[union-attr]

    @contextmanager
    def served(self, *options: str) -> Iterator[ServeProcess]:
        """`hfx serve` of `repository`; the time of its start is printed."""
        began = time.monotonic()
        with serving(self.repository, "--device", self.device, *options) as server:
            say(f"ready after {time.monotonic() - began:.1f} s")
            yield server


def look(check: Check) -> None:
    """The GPU, the versions, and whether ONNX Runtime can use it."""
    import onnxruntime

    from tests.rigs.machine.gpus import HAS_CUDA

    say(f"{gpu_facts() or 'no GPU'}; onnxruntime {onnxruntime.__version__}, usable GPU: {HAS_CUDA}")
    assert HAS_CUDA or check.device == "cpu", "ONNX Runtime can't use the GPU"


def export(check: Check) -> None:
    """The trained checkpoints with the gate, and full sizes with random weights without, as bench.gpu needs them."""
    with ProcessPoolExecutor(len(gpu.LOADS)) as pool:
        sizes = {each.shape: pool.submit(Served(each.shape).repository, BOTH, check.quick) for each in gpu.LOADS}
        with ThreadPoolExecutor() as threads:
            folders = [folder for folder in sorted(check.checkpoints.iterdir()) if (folder / "config.json").is_file()]
            options = ("--quantize", "--cpu-runtime", "native", "--force", "--repository", check.repository)
            names = [folder.name.lower() for folder in folders]
            jobs = {
                name: threads.submit(hfx, "export", folder, "--name", name, *options, limit=300)
                for name, folder in zip(names, folders, strict=True)
            }
            for name, job in jobs.items():
                say(f"{name}: {tail(job.result())}")
        for shape, found in sizes.items():
            say(f"{shape}: {found.result().name}")
    for entry in models(check.repository):
        parity: Any = entry.manifest.parity if entry.manifest else {}
        say(f"{entry.name} on the GPU's file: {json.dumps(parity.get('gpu'))[:600]}")


def serve(check: Check) -> None:
    """Every model answers as its checkpoint over Triton, and the server ends with exit code 0 after SIGTERM."""
    with check.served() as server:
        for name in (*check.of_kind(False), *check.of_kind(True)):
            place = ("--repository", check.repository, "--url", server.ready["grpc_url"], "--device", check.device)
            say(f"verify {name}: {tail(hfx('verify', name, *place, limit=120))}")
        gpus = metrics.gpus(metrics.read(server.ready["metrics_url"]))
        say(f"Triton's GPUs: {gpus}")
        server.running.send_signal(signal.SIGTERM)
        assert server.end() == 0, server.words
    assert gpus or check.device == "cpu", "Triton reports no GPU"


def compare(check: Check) -> None:
    """`hfx perf compare` starts a server for each device, and shows how busy the GPU was."""
    devices = "cpu,gpu" if check.device == "gpu" else "cpu"
    load = ("--concurrency", "1,64", "--duration", "1s", "--rounds", "1", "--price", "cpu=0.80/h", "--price", "gpu=4/h")
    for name in check.of_kind(False)[:1]:
        say(hfx("perf", "compare", name, "--repository", check.repository, "--devices", devices, *load, limit=120))


def capture(check: Check) -> None:
    """Steps of every generator are captured; the log and /metrics say so, or why not."""
    failed = []
    with check.served() as server:
        for name in check.of_kind(True):
            before = metrics.read(server.ready["metrics_url"])
            answer(server, name, 8)
            time.sleep(2.0)  # metrics are published five times a second
            after = metrics.read(server.ready["metrics_url"])
            counted = metrics.counters(before, after, [name])
            share = counted.get("hfx_captured_steps_total", 0.0) / max(counted.get("hfx_steps_total", 0.0), 1.0)
            shapes = {each: value for each, value in counted.items() if each.startswith("hfx_prompt_runs_total")}
            say(f"{name}: {100 * share:.0f} % of steps captured; prompts {shapes}")
            failed += [name] if share < CAPTURED else []
        said = [line for line in server.words.splitlines() if "graph" in line.lower()]
        say("log: " + ("; ".join(said) or "nothing about graphs"))
    assert not failed or check.device == "cpu", f"steps are not captured: {', '.join(failed)}"


def prompts(check: Check) -> None:
    """The time until the first token of 32 unequal prompts that come at once, in process."""
    from hfx.python_backends.engine.engine import Engine
    from hfx.python_backends.engine.request import Request, Settings

    repository = Served("distilgpt2").repository(BOTH, check.quick)
    folder = repository / (NAME + STREAM_SUFFIX) / "1" / check.device
    provider = "CUDA" if check.device == "gpu" else "CPU"
    chance = random.Random(0)
    with Engine.open(folder, provider=provider, slots=32, max_queue=32, prefix_cache_mb=0, guesses=False) as engine:
        for least, most in PROMPTS:
            times = []
            for _ in range(TURNS + 1):  # the first one does not count
                ids = [[chance.randint(100, 30_000) for _ in range(chance.randint(least, most))] for _ in range(32)]
                began = time.perf_counter()
                handles = [engine.submit(Request(tuple(each), Settings(max_tokens=1))) for each in ids]
                _ = [handle.result() for handle in handles]
                times.append(1e3 * (time.perf_counter() - began))
            ends = f"{number(min(times[1:]))}-{number(max(times[1:]))}"
            say(f"32 prompts of {least} to {most} tokens: {number(statistics.median(times[1:]))} ms ({ends})")
        say(f"runs by (rows, width): {dict(engine.stats().prompt_runs)}")


def onehop(check: Check) -> None:
    """An encoder in one hop answers as its Python steps do; requests a second of both."""
    count = 64 if check.quick else TEXTS
    texts = [str(each.inputs[TEXT_INPUT][0]) for each in synthetic(count, parse_lengths("lognormal:40,0.6,120")).items]
    answers: dict[str, list[dict[str, Any]]] = {}
    [name, *_] = check.of_kind(False)
    for steps in ("python", "native"):
        with (
            check.served("--steps", steps, "--models", name) as server,
            Client(server.ready["grpc_url"]) as client,
            ThreadPoolExecutor(CALLERS) as callers,
        ):
            for measured in (False, True):  # the first time, shapes are prepared
                began = time.perf_counter()
                answers[steps] = list(callers.map(lambda text: client.infer(name, {TEXT_INPUT: [text]}), texts))
                if measured:
                    say(f"{steps}: {number(count / (time.perf_counter() - began))} requests/s, {CALLERS} callers")
            how = "the published steps" if steps == "python" else "one hop"
            say(f"log: {'; '.join(line for line in server.words.splitlines() if 'steps' in line) or how}")
    pairs = list(zip(answers["native"], answers["python"], strict=True))
    others = sum(one["label"].item() != other["label"].item() for one, other in pairs)
    most = max(abs(one["score"].item() - other["score"].item()) for one, other in pairs)
    say(f"{others} of {count} labels differ, scores by at most {most:.2g}")
    assert not others and most <= CLOSE


def lost(check: Check) -> None:
    """A full GPU is refused in one clear line; a killed stub is replaced, and requests are answered again."""
    if check.device == "gpu":
        with subprocess.Popen(
            [sys.executable, "-c", FILL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as full:
            assert full.stdout and full.stdout.readline() == "full\n", "the GPU can't be filled"
            text = hfx("serve", check.repository, "--device", "gpu", "--strict", "--http-port", "0", "--grpc-port", "0",
                       "--metrics-port", "0", limit=200, code=5)  # fmt: skip
            full.communicate("\n")
        say(f"a full GPU: {text.strip().splitlines()[0][:300]}")
        assert "too little free memory" in text
    [name, *_] = check.of_kind(True)
    with check.served("--models", name) as server:
        answer(server, name, 1)
        os.kill(server.stub(f"{name}{STREAM_SUFFIX}"), signal.SIGKILL)
        began, codes = time.monotonic(), list[int]()

        def answers() -> bool:
            codes.append(ask(server, name, "acknowledge"))
            return codes[-1] == 200 and time.monotonic() - began > 1.0

        wait_until(answers, "an answer", 120.0)
        say(f"answers again after {time.monotonic() - began:.1f} s; statuses until then {sorted(set(codes))}")
        assert set(codes) <= {200, 400, 503}, codes  # Triton's own generate answers 400 to a model that is reloaded


def tests(check: Check) -> None:
    """The tests that need a GPU."""
    say(tail(run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], 300), 8))


PHASES: dict[str, Callable[[Check], None]] = {
    each.__name__: each for each in (look, export, serve, compare, capture, prompts, onehop, lost, tests)
}


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - BEGAN:6.1f}] {text}", flush=True)


def tail(text: str, lines: int = 2) -> str:
    """Return the last `lines` of a command's output in one line."""
    return " | ".join([line.strip()[:300] for line in text.splitlines() if line.strip()][-lines:])


def hfx(*arguments: object, limit: float, code: int = 0) -> str:
    """Return what an hfx command prints, stderr first. Raises AssertionError for another exit code than `code`."""
    return run([*HFX, *map(str, arguments)], limit, code)


def run(command: Sequence[str], limit: float, code: int = 0) -> str:
    """Return what `command` prints. Raises AssertionError for another exit code, and TimeoutExpired."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    text = done.stderr + done.stdout
    assert done.returncode == code, f"{done.returncode}: {tail(text, 12)}"
    return text


def ask(server: ServeProcess, name: str, text: str) -> int:
    """Return the HTTP status of a generator's answer to `text`; 0 where there is none."""
    try:
        return post(f"{server.http_url}/v2/models/{name}/generate", {TEXT_INPUT: text, "max_tokens": 24}, 60.0)[0]
    except OSError:
        return 0


def answer(server: ServeProcess, name: str, callers: int) -> None:
    """Have `callers` texts of a generator written at once. Raises AssertionError where one is not."""
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda at=at: codes.append(ask(server, name, f"acknowledge {at}")))
        for at in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * callers, f"{name}: statuses {codes}"


def main() -> int:
    """Run the phases."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=f"Phases: {', '.join(PHASES)}.")
    parser.add_argument("phases", metavar="PHASE", nargs="*", default=list(PHASES), help="all without it")
    parser.add_argument("--device", choices=tuple(gpu.PRECISIONS), default="gpu")
    parser.add_argument("--quick", action="store_true", help="tiny models of random weights")
    parser.add_argument("--checkpoints", type=Path, required=True, metavar="DIR", help="trained checkpoints")
    parser.add_argument(
        "--work", type=Path, default=Path("build/gpu"), metavar="DIR", help="where models are published"
    )
    options = parser.parse_args()
    check = Check(options.device, options.quick, options.checkpoints, options.work)
    failed = []
    for phase in options.phases:
        word, _, works = phase.partition(":")
        say(f"== {phase}")
        try:
            if word == "bench":
                quick = ["--quick"] if check.quick else []
                gpu.main([*filter(None, works.split(",")), "--device", check.device, "--rounds", "2", *quick])
            else:
                PHASES[word](check)
        except (AssertionError, HfxError, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            failed.append(phase)
            say(f"{phase} FAILED: {type(error).__name__}: {error}")
    say(f"failed: {', '.join(failed)}" if failed else "all phases passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
