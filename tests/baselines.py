"""`python -m tests.baselines FILE`: what hfx publishes and answers, compared before and after a change of structure.

Writes to FILE the digests of published folders (trained checkpoints of the zoo) and the answers of a server to the
same requests in every dialect and by gRPC; `--before OTHER` prints what differs from OTHER and exits with 1.
Times, dates and the sources of Python backends are left out. Generated documents are compared by git.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hfx.client import Client
from hfx.errors import HfxError
from tests.rigs.checkpoints.published import export_zoo
from tests.rigs.clients.dialect_calls import call
from tests.rigs.servers.serve_process import ServeProcess, serving

MODELS = {
    "sentiment": ("sentiment-distilbert", "int8", "onnxruntime"),
    "topics": ("topics-roberta", "fp32", "onnxruntime"),
    "entities": ("entities-bert", "fp32", "onnxruntime"),
    "answers": ("answers-bert", "fp32", "onnxruntime"),
    "nli": ("nli-bart", "fp32", "onnxruntime"),
    "similar": ("similar-mpnet", "fp32", "onnxruntime"),
    "stories": ("stories-gpt2", "int8", "onnxruntime"),
    "summaries": ("summaries-bart", "int8", "onnxruntime"),
    "notes": ("summaries-t5", "fp32", "onnxruntime"),
}
TEXT = "The garden was lovely, but Anna went to Oslo by train 🚂."
SAMPLED: Mapping[str, Any] = MappingProxyType({"temperature": 0.9, "seed": 11})
QUESTION = {"question": "Where did Anna go?", "context": TEXT}
LABELS = {"candidate_labels": ["travel", "food"], "multi_label": True}
FIELDS: dict[str, Any] = {"text_input": TEXT, "max_tokens": 9, "min_tokens": 0, "temperature": 1.0}
REQUESTS: tuple[tuple[str, Any], ...] = (
    ("/v1/completions", {"model": "stories", "prompt": "Anna was", "max_tokens": 12, "logprobs": 2, **SAMPLED}),
    ("/v1/completions", {"model": "stories", "prompt": "Anna was", "n": 3}),
    ("/v1/chat/completions", {"model": "stories", "messages": [{"role": "user", "content": "Anna"}]}),
    ("/v1/embeddings", {"model": "similar", "input": ["a", TEXT], "encoding_format": "base64"}),
    ("/v1/models", None),
    *((f"/models/{name}", {"inputs": TEXT}) for name in MODELS),
    ("/models/answers", {"inputs": QUESTION, "parameters": {"top_k": 2}}),
    ("/models/nli", {"inputs": TEXT, "parameters": LABELS}),
    ("/models/sentiment", {"inputs": TEXT, "parameters": {"top_k": 1, "no_such": 1}}),
    ("/models/summaries", {"inputs": TEXT, "parameters": {"num_beams": 2, "max_new_tokens": 8}}),
    ("/models/none", {"inputs": TEXT}),
    *((path, {"inputs": TEXT}) for path in ("/predict", "/embed", "/tokenize", "/rerank", "/embed_sparse")),
    ("/v2/models/stories/generate", {"text_input": "Anna was", "max_tokens": 12, "return_log_probs": True}),
    ("/v2/models/stories/generate", {"text_input": "Anna was", "num_beams": 0}),
    ("/v2/models/stories/generate", {"text_input": 5}),
    *(
        (f"/v2/models/{name}/infer", {"inputs": [{"name": field, "shape": [1, 1], "datatype": kind, "data": [value]}]})
        for name in MODELS
        for field, kind, value in (("text_input", "BYTES", TEXT), ("text_input", "INT32", 4), ("text", "BYTES", TEXT))
    ),
    *((f"/v2/models/{name}", None) for name in MODELS),
    *((f"/v2/models/{name}/config", None) for name in MODELS),
    ("/v2", None),
    ("/openapi.json", None),
)
PORT = re.compile(r"(?<=127\.0\.0\.1):\d+")
UNSTABLE = {
    "created",
    "exported",
    "hfx",
    "id",
    "milliseconds",
    "model_sha256",
    "near",
    "other_cores",
    "peak_rss_mb",
    "seconds",
    "version",
}


def main() -> int:
    """1 where FILE differs from `--before`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for name, (checkpoint, precision, runtime) in MODELS.items():
            export_zoo(checkpoint, repository, name, precision, runtime)
        now = {**dict(_digests(repository)), **_answers(repository)}
    options.file.write_text(json.dumps(now, indent=1, sort_keys=True, ensure_ascii=False), encoding="utf-8")
    if options.before is None:
        return 0
    before = json.loads(options.before.read_text(encoding="utf-8"))
    differing = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    for key in differing:
        sys.stdout.write(f"{key}\n  before: {before.get(key)}\n  now:    {now.get(key)}\n")
    sys.stdout.write(f"{len(differing)} of {len(now)} differ\n")
    return int(bool(differing))


def _digests(repository: Path) -> Iterator[tuple[str, str]]:
    """Of every published file but the sources of Python backends; JSON without what is UNSTABLE."""
    for file in sorted(path for path in repository.rglob("*") if path.is_file() and path.suffix != ".py"):
        content = file.read_bytes()
        if file.suffix == ".json":
            with contextlib.suppress(ValueError):
                content = json.dumps(_stable(json.loads(content)), sort_keys=True).encode()
        if file.suffix == ".pbtxt":
            lines = (line for line in content.splitlines() if b"sha256" not in line)
            content = b"\n".join(lines)
        yield str(file.relative_to(repository)), hashlib.sha256(content).hexdigest()


def _answers(repository: Path) -> dict[str, Any]:
    with serving(repository) as server:
        answers = {
            f"{number} {path} {json.dumps(body)}": _answer(server, path, body)
            for number, (path, body) in enumerate(REQUESTS)
        }
        with Client(server.ready["grpc_url"]) as client:
            for name, ask in _calls(client).items():
                try:
                    answers[f"gRPC {name}"] = _stable(json.loads(json.dumps(ask(), default=_plain)))
                except HfxError as error:
                    answers[f"gRPC {name}"] = f"{type(error).__name__}: {PORT.sub('', str(error))}"
        server.running.terminate()
        server.end()
    return answers


def _calls(client: Client) -> dict[str, Callable[[], Any]]:
    return {
        "classify": lambda: client.classify("sentiment", TEXT),
        "label_tokens": lambda: client.label_tokens("entities", TEXT),
        "answer": lambda: client.answer("answers", QUESTION["question"], TEXT),
        "zero_shot": lambda: client.zero_shot("nli", TEXT, ["travel", "food"]),
        "embed": lambda: client.embed("similar", TEXT).tolist(),
        "generate": lambda: client.generate("stories", "Anna was", max_tokens=12),
        "summarize": lambda: client.summarize("notes", TEXT, num_beams=2),
        "unknown": lambda: client.generate("none", TEXT),
    }


def _answer(server: ServeProcess, path: str, body: Any) -> Any:
    try:
        status, _, answer = call(server, path, body)
    except ValueError:
        return "no JSON"
    return [status, _stable(answer)]


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def _stable(value: Any) -> Any:
    """`value` without UNSTABLE members, and digests of sources and configurations."""
    if isinstance(value, dict):
        return {k: _stable(v) for k, v in value.items() if k not in UNSTABLE and not k.endswith((".py", ".pbtxt"))}
    if isinstance(value, list):
        return [_stable(each) for each in value]
    return value


if __name__ == "__main__":
    sys.exit(main())
