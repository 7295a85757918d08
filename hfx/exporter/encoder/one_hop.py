"""Compile the tokenizer of an encoder, and prove that the result gives the same ids.

With it, `hfx serve` runs the ensemble's steps as one model in C++.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfx import native
from hfx.errors import NativeMissing
from hfx.exporter.encoder.plan import EncoderPlan
from hfx.exporter.model_files import write_tokenizer_json
from hfx.exporter.tokenizer_checks import LONG_SECONDS, tried
from hfx.names import COMPILED_TOKENIZER, Task

PAIRS = frozenset({Task.TEXT_RANKING, Task.ZERO_SHOT_CLASSIFICATION})
GENERATED = 100_000  # texts of about twenty characters each


@dataclass(frozen=True)
class Compiled:
    """The result of compiling a tokenizer.

    `content` has the bytes of tokenizer.hfx, and `texts` is the number of texts for which it gave the tokenizer's own
    ids. If there is no compiled tokenizer, `why_not` is the reason.
    """

    content: bytes = b""
    texts: int = 0
    why_not: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's entry for the tokenizer."""
        if self.content:
            return {"compiled": True, "texts_compared": self.texts}
        return {"compiled": False, "reason": self.why_not}


def start_proof(plan: EncoderPlan, tokenizer: Any, texts: Sequence[str]) -> Future[Compiled]:
    """Compile `tokenizer`, and prove that it gives the tokenizer's own ids for `texts` and for generated texts.

    If the tokenizer can't be compiled, gives other ids, or is of no use to the model, the result has the reason.
    Another process does the work, while this one goes on.
    """
    if reason := _needs_python(plan, tokenizer):
        return known(Compiled(why_not=reason))
    folder = tempfile.TemporaryDirectory(prefix="hfx-tokenizer-")
    source, target = Path(folder.name) / "tokenizer.json", Path(folder.name) / COMPILED_TOKENIZER
    write_tokenizer_json(tokenizer, source)

    def prove() -> Compiled:
        with folder:
            reason = tried(plan.checkpoint, LONG_SECONDS, texts, source, target, GENERATED)
            return Compiled(why_not=reason) if reason else Compiled(target.read_bytes(), len(texts) + GENERATED)

    pool = ThreadPoolExecutor(1)
    future = pool.submit(prove)
    pool.shutdown(wait=False)
    return future


def known(compiled: Compiled) -> Future[Compiled]:
    """Return the result of a proof that has ended."""
    future = Future[Compiled]()
    future.set_result(compiled)
    return future


def _needs_python(plan: EncoderPlan, tokenizer: Any) -> str:
    """Return why native/backend can't serve the model; empty if it can."""
    task = plan.kind.task
    if needing := plan.kind.why_python:
        return f"Python steps are needed by {' and '.join(needing)}"
    try:
        native.library()
    except NativeMissing as missing:
        return missing.message
    special = tokenizer.num_special_tokens_to_add(pair=task in PAIRS)
    if special >= plan.max_length:
        return f"{special} special tokens leave no room for a text in {plan.max_length}"
    if task is not Task.ZERO_SHOT_CLASSIFICATION:
        return ""
    settings = plan.kind.reader_settings(plan.checkpoint, tokenizer, plan.max_length)
    template = str(settings.get("hypothesis_template", "{}"))
    if not re.fullmatch(r"[^{}]*\{\}[^{}]*", template):
        return f"the hypothesis template {template!r} has other braces than one {{}}"
    return "" if special else "the tokenizer has no special tokens around a pair of texts"
