"""`python -m bench.proof`: lm-eval's figures of trained decoders, by its own model of transformers and by `hfx serve`.

lm-eval runs unchanged, as a process of its own: `--model hf` reads the checkpoint; `--model local-completions` sends
token ids to the server, which returns the log-probabilities of prompts. The tasks are in bench/tasks; what they read is
made by the zoo's generator, and by the texts of bench.quality that its model was not trained on.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench import command, quality
from bench.child import PeerFailed
from bench.command import Settings, Work
from bench.exports import NAME, exported
from bench.figures import Figures, Goal, machine_line, noted, say, table
from bench.packages import Packages
from bench.peers.processes import free_ports, running
from tests import zoo
from tests.zoo import world
from tests.zoo.data import stories

LM_EVAL = Packages("lm-eval", (
    "lm_eval==0.4.13", "datasets==5.2.0", "evaluate==0.4.6", "sacrebleu==2.6.0", "rouge_score==0.1.2",
    "sqlitedict==2.1.0", "word2number==1.1", "more_itertools==11.2.1", "tenacity==9.2.1", "pytablewriter==1.2.1",
    "dill==0.4.1", "multiprocess==0.70.19", "xxhash==4.1.0", "portalocker==3.2.0", "colorama==0.4.6",
    "tabulate==0.10.0", "nltk==3.10.4", "absl_py==2.5.1", "DataProperty==1.1.1", "mbstrdecoder==1.1.5",
    "pathvalidate==3.3.1", "tabledata==1.3.5", "tcolorpy==0.1.7", "typepy==2.0.0", "chardet==7.7.0",
    "jsonlines==4.0.0", "zstandard==0.25.0", "lxml==6.1.3",
))  # fmt: skip
TASKS, RESULTS = Path(__file__).with_name("tasks"), Path("bench/results/proof.jsonl")
STORIES = 200
PRECISIONS: tuple[Any, ...] = ("fp32", "int8", "int4")
THEIRS, LARGEST, UNEQUAL = "transformers fp32", "largest difference", "unequal figures"
COLUMNS = ("acc", "acc norm", "exact match", "word perplexity", "byte perplexity", "bits per byte", LARGEST)
HFX = str(Path(sys.executable).with_name("hfx"))
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
Rows = list[dict[str, Any]]
Results = Mapping[str, Mapping[str, Any]]  # figures of each task
Answers = Mapping[str, list[Any]]  # of each task: a log-likelihood, or the text, for each request


def prove(settings: Settings, figures: Figures, subject: str) -> None:
    """Add the figures of all ways to answer the tasks of `subject`."""
    LM_EVAL.fetch()
    checkpoint, rows = SUBJECTS[subject](settings)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"{subject}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        say("transformers")
        arguments = f"pretrained={checkpoint},dtype=float32"
        expected = evaluated(folder, subject, "hf", arguments, "--device", "cpu", "--batch_size", "1")
        _add(figures, THEIRS, expected, expected)
        for precision in PRECISIONS:
            with noted(figures, f"hfx {precision}"):
                say(f"hfx {precision}")
                found = _served(folder, subject, checkpoint, exported(checkpoint, precision))
                _add(figures, f"hfx {precision}", expected, found)


def story_rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield stories that no training has seen, each with the right end among three that differ in a word or two."""
    rng = random.Random("proof")
    made = [stories.compose(rng, (3,)) for _ in range(max(count, 100))]
    verbs = sorted({story.continuation.partition(".")[0] for story in made})
    for story in made[:count]:
        end = story.continuation
        colours = [each for each in world.COLOURS if f" {each} " in end]
        names = [each for each in world.FIRST_NAMES if f" for {each}" in end]
        own = end.partition(".")[0]
        ends = [end, _swapped(end, *rng.sample(colours, 2)), _swapped(end, *rng.sample(names, 2))]
        ends.append(end.replace(own, rng.choice([verb for verb in verbs if verb != own]), 1))
        order = rng.sample(range(4), 4)
        yield {"prompt": story.prompt, "choices": [ends[at] for at in order], "label": order.index(0)}


def _swapped(text: str, one: str, other: str) -> str:
    return text.replace(one, "\0").replace(other, one).replace("\0", other)


def _stories(settings: Settings) -> tuple[Path, Rows]:
    return zoo.checkpoint("stories-gpt2"), [*story_rows(4 if settings.quick else STORIES)]


def _prose(settings: Settings) -> tuple[Path, Rows]:
    from transformers import AutoTokenizer

    checkpoint = quality.trained(settings)
    tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint)
    texts = [tokenizer.decode(ids).strip() for ids in quality.split(checkpoint)[1][: 4 if settings.quick else None]]
    places = [text.rindex(" ") for text in texts]
    return checkpoint, [{"before": text[:at], "word": text[at:]} for text, at in zip(texts, places, strict=True)]


def _served(folder: Path, subject: str, checkpoint: Path, repository: Path) -> tuple[Results, Answers]:
    http, grpc, metrics = free_ports(3)
    url = f"http://127.0.0.1:{http}"
    ports = ("--http-port", f"{http}", "--grpc-port", f"{grpc}", "--metrics-port", f"{metrics}")
    with running("hfx serve", (HFX, "serve", str(repository), *ports), f"{url}/v2/health/ready", {}):
        arguments = f"model={NAME},base_url={url}/v1/completions,tokenizer={checkpoint},max_length=512,num_concurrent=4"
        return evaluated(folder, subject, "local-completions", arguments)


def evaluated(folder: Path, subject: str, model: str, arguments: str, *options: str) -> tuple[Results, Answers]:
    """Run lm-eval on the tasks of `subject`, whose data are in `folder`. Raises PeerFailed."""
    tasks = sorted(path.stem for path in TASKS.glob(f"{subject}_*.yaml"))
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "lm_eval", "--model", model, "--model_args", arguments, *options]
        command += ["--tasks", ",".join(tasks), "--include_path", str(TASKS), "--log_samples", "--output_path", output]
        paths = {"PYTHONPATH": str(LM_EVAL.folder), "HF_HOME": f"{output}/cache"}
        environment = {**os.environ, **OFFLINE, **paths}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise PeerFailed(f"lm-eval ended with code {done.returncode}: {lines[-1] if lines else 'no output'}")
        (results,) = Path(output).rglob("results_*.json")
        return json.loads(results.read_text())["results"], {task: _answers(Path(output), task) for task in tasks}


def _answers(output: Path, task: str) -> list[Any]:
    """Return the answer to each request of a task: a log-likelihood, or a text."""
    (path,) = output.rglob(f"samples_{task}_*.jsonl")
    samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    answers = [response[0] for sample in samples for response in sample["resps"]]
    return [each if _is_text(task) else float(each[0] if isinstance(each, list) else each) for each in answers]


def _is_text(task: str) -> bool:
    return "generate_until" in (TASKS / f"{task}.yaml").read_text(encoding="utf-8")


def _add(figures: Figures, way: str, expected: tuple[Results, Answers], found: tuple[Results, Answers]) -> None:
    """Add the figures that lm-eval prints, and how far the single answers are from those of the checkpoint."""
    for task, results in found[0].items():
        values = {key.removesuffix(",none"): value for key, value in results.items() if key.endswith(",none")}
        known = {key: value for key, value in values.items() if isinstance(value, float)}
        theirs = {key: expected[0][task][f"{key},none"] for key in known}
        unequal = sum(f"{known[key]:.4f}" != f"{theirs[key]:.4f}" for key in known)
        pairs = list(zip(expected[1][task], found[1][task], strict=True))
        if _is_text(task):
            known["unequal_texts"] = float(sum(one != other for one, other in pairs))
        else:
            known["largest_difference"] = max(abs(one - other) for one, other in pairs)
        figures.add(way, task, 0, **known, unequal_figures=float(unequal))


def page(results: Mapping[str, Figures]) -> str:
    """Return the tables of a page, with the digits that lm-eval prints."""
    parts = []
    for name, figures in results.items():
        columns = [column for column in (*COLUMNS, "unequal texts") if figures.cases(column)]
        rows = [
            (task, way, *(_cell(figures, way, task, column) for column in columns))
            for task in figures.cases()
            for way in figures.ways(task)
        ]
        parts += [table(WORKS[name].title, ("task", "candidate", *columns), rows), machine_line(figures), ""]
    return "\n".join(parts)


def _cell(figures: Figures, way: str, task: str, column: str) -> str:
    value, error = figures.median(way, task, column), figures.median(way, task, f"{column} stderr")
    if value is None:
        return ""
    if column in (LARGEST, "unequal texts"):
        return f"{value:.2g}"
    return f"{value:.4f}" + (f" ± {error:.4f}" if error else "")


SUBJECTS: Mapping[str, Callable[[Settings], tuple[Path, Rows]]] = {"stories": _stories, "prose": _prose}
TITLES = {
    "stories": "stories-gpt2: 2 layers, trained for a minute on made stories; 200 others",
    "prose": "A Llama of 4 layers, trained on English prose; texts that it was not trained on",
}


def _goals(tasks: Sequence[str]) -> tuple[Goal, ...]:
    return tuple(Goal(task, UNEQUAL, ("hfx fp32",), most=0.0) for task in tasks)


WORKS = {
    subject: Work(
        title, partial(prove, subject=subject), (*COLUMNS, "unequal texts", UNEQUAL),
        goals=_goals(sorted(path.stem for path in TASKS.glob(f"{subject}_*.yaml"))),
    )
    for subject, title in TITLES.items()
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(command.run("proof", WORKS, kept=RESULTS))
