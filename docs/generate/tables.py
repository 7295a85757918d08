"""Generated tables of the documentation: settings, tensors and parameters, metrics, Python API and errors."""

from __future__ import annotations

import inspect
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any

from hfx import errors, names

MADE = "Generated from the code by `make docs`."
TRANSPORTS = ("Transport", "Request", "Stream")  # names of hfx.client for few
EXIT_CODES = {
    0: "done",
    1: "an unexpected error",
    2: "wrong usage, or a repository or batch job that can't do it",
    3: "a checkpoint or model that is missing, unsupported, unsafe or damaged",
    4: "the exported model does not answer like the checkpoint",
    5: "the server: it does not start or answer, or it refuses",
    6: "more error rows in a batch job than allowed",
    7: "findings of `hfx lint` or `hfx deploy check`",
    130: "interrupted by Ctrl-C, or a cancelled batch job",
    141: "the reader of stdout has closed it",
}
# Parameters of config.pbtxt: folder, name, what it means. Defaults of an export are in the files themselves.
PARAMETERS = (
    ("NAME_tokenize", "max_queue_seconds", "a request that would wait longer is refused; 0: no limit"),
    ("NAME_tokenize", "max_queue_size", "requests that may wait for the net; 0: no limit"),
    ("NAME_net", "intra_op_thread_count", "threads of each operator"),
    ("NAME_net", "inter_op_thread_count", "operators that run in parallel"),
    ("NAME_net", "max_width", "tokens of the longest row that the net reads"),
    ("NAME_net", "label_mask", "attention mask of a label; only rows with equally many labels share a run"),
    ("NAME_net", "variant", "how the net is written and run, such as `int8` or `gpu-fp16`"),
    ("NAME_net", "session.*", "an entry of ONNX Runtime's session configuration"),
    ("NAME_net", "session.intra_op.spin_duration_us", "µs that threads spin before they sleep; hfx's backend only"),
    ("NAME_net", "max_queue_seconds", "of Python steps: longest wait of a large request, unless no other one waits"),
    ("NAME_net", "operators", "a library of operators for ONNX Runtime beside the ONNX file, for x86-64"),
    ("NAME_net", "operators_sha256", "its SHA-256, compared before it is loaded"),
    ("NAME_net", "operators_aarch64", "such a library for ARM64"),
    ("NAME_net", "operators_sha256_aarch64", "its SHA-256"),
    (
        "NAME_net",
        "skips_padding",
        "1: the library computes nothing for padding, so rows of similar, and not only of equal, widths share a run",
    ),
    ("NAME", "engine", "of a generator: the model that holds the engine"),
    ("NAME", "task", "of a generator: its task, which the tensors do not show"),
    ("NAME", "kind", "of an encoder: what it gives, such as embedder, sparse, late (ColBERT) or cross_encoder"),
    ("NAME", "thresholds", "of a classifier: JSON, label (empty: all) to the score from which moderations flag it"),
    ("NAME", "safe_labels", "of a classifier: JSON, the labels that moderations do not flag"),
    (
        "NAME",
        "model_sha256",
        "SHA-256 of the published files except configurations; `hfx batch --url` detects a changed model by it",
    ),
    ("NAME_stream", "device", "cpu or gpu"),
    ("NAME_stream", "cpu_runtime", "onnxruntime or native"),
    ("NAME_stream", "slots", "sequences that are decoded at a time; each beam takes one"),
    ("NAME_stream", "max_queue_size", "requests that may wait for slots; the next one is refused"),
    ("NAME_stream", "max_queue_seconds", "longest estimated wait; further requests are refused; 0: no limit"),
    ("NAME_stream", "prefix_cache_mb", "MB for common beginnings of prompts, for decoders on CPU; 0: none"),
    ("NAME_stream", "intra_op_thread_count", "threads of each operator"),
    ("NAME_stream", "drain_seconds", "time that running requests get when the model is unloaded"),
)


def settings_page() -> str:
    """The settings of generation requests."""
    from hfx.python_backends.engine.generation_settings import SETTINGS

    rows = [
        (
            code(setting.name),
            ", ".join(map(code, setting.aliases)),
            setting.dtype or "not served",
            setting.allowed,
            default(setting),
            setting.text,
        )
        for setting in SETTINGS.values()
    ]
    text = (
        "The settings of a generation request, in every interface: `hfx infer` (as `--max-tokens`), the Python "
        "client, Triton's tensors and request parameters, OpenAI's and the other HTTP APIs. The default applies if "
        "neither the request nor the checkpoint's `generation_config.json` sets the field. A value out of range, a "
        "setting without effect (of beam search without beams) and an unknown name are refused; the error names the "
        "field."
    )
    return page("Generation settings", text, ("setting", "also called", "type", "values", "default", "meaning"), rows)


def default(setting: Any) -> str:
    """The default of a generation setting in a table."""
    if setting.name == "long":
        return "truncate with an encoder, error without"
    return "–" if setting.default in (None, ()) or setting.name == "seed" else code(str(setting.default).lower())


def tensors_page() -> str:
    """Inputs and outputs of every task, and the parameters of config.pbtxt."""
    text = (
        "These are the inputs and outputs of the published models in Triton. A request has a batch dimension in front: "
        "one text is `[1, 1]`. BYTES are UTF-8. Models with prompts have `prompt_name` and `prompt`; models with "
        "shorter vectors have `dimensions`."
    )
    parts = [f"# Tensors and parameters\n\n{wrapped(text)}\n"]
    parts += [_tensor_section(title, rows) for title, rows in tensors().items()]
    settings = (
        "Every served [generation setting](settings.md) is an optional input of its name and type, of shape `[1]` "
        f"(lists: `[-1]`). `{names.CANCEL_REQUEST}` is an input of `NAME_stream` alone."
    )
    parts += [f"{_filled(settings)}\n", _kinds_section(), _parameters_section()]
    return "\n".join(parts)


def tensors() -> dict[str, list[tuple[str, str, str, str]]]:
    """Task, or the generators -> name, direction, type and shape of each tensor; without generation settings."""
    from hfx.exporter.encoder.folders import TRUNCATED
    from hfx.exporter.encoder.kinds import BY_KIND, usual_kind
    from hfx.exporter.generation.folders import OUTPUTS, STREAM_INPUTS
    from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS
    from hfx.tasks.kinds import USUAL

    rows = {}
    for task in USUAL:
        kind = usual_kind(task)
        rows[str(task)] = _tensor_rows(kind.inputs, (*kind.outputs, TRUNCATED))
    spans = BY_KIND[names.Kind.SPANS]()  # type: ignore[call-arg]
    rows[f"{spans.task} of the kind {spans.name}"] = _tensor_rows(spans.inputs, (*spans.outputs, TRUNCATED))
    generators = ", ".join(sorted(str(task) for task in names.GENERATION_TASKS))
    inputs = [spec for spec in STREAM_INPUTS if spec.name not in {*SETTINGS, *ALIASES}]
    return {**rows, f"Generators: {generators}": _tensor_rows(inputs, OUTPUTS)}


def _kinds_section() -> str:
    """The kinds of encoders, with what their classes say of themselves."""
    from hfx.exporter.encoder.kinds import BY_KIND

    text = (
        "The kind of an encoder says more exactly than its task what its answers are. It is `choices.kind` in "
        'hfx.json, and the parameter `kind` of the configuration. Kinds without "yes" under *one hop* are served by '
        "several Python steps, not by one C++ model."
    )
    rows = []
    for kind, kind_class in BY_KIND.items():
        one_hop = "no" if kind_class().why_python else "yes"  # type: ignore[call-arg]
        meaning = str(kind_class.__doc__).partition("\n")[0]
        rows.append((code(kind), code(kind_class.task), meaning, one_hop))
    head = ("kind", "task", "gives", "one hop")
    return f"## Kinds of encoders\n\n{_filled(text)}\n\n" + "\n".join(table(head, rows)) + "\n"


def _tensor_section(title: str, rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = table(("tensor", "", "type", "dims"), [(code(name), *rest) for name, *rest in rows])
    return f"## {title}\n\n" + "\n".join(lines) + "\n"


def _tensor_rows(inputs: Iterable[Any], outputs: Iterable[Any]) -> list[tuple[str, str, str, str]]:
    rows = [(spec.name, "optional input" if spec.optional else "input", *_type_of(spec)) for spec in inputs]
    return rows + [(spec.name, "output", *_type_of(spec)) for spec in outputs]


def _type_of(spec: Any) -> tuple[str, str]:
    data_type = spec.data_type.removeprefix("TYPE_")
    return "BYTES" if data_type == "STRING" else data_type, str(list(spec.dims))


def exit_codes() -> Iterator[str]:
    """A table of the exit codes of the command line."""
    return table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in EXIT_CODES.items()])


def error_classes() -> Iterator[type[errors.HfxError]]:
    """The classes of the error tree, a base before its kinds."""
    return (each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.HfxError))


def _errors_section() -> str:
    rows = [(code(e.__name__), code(e.__mro__[1].__name__), str(e.exit_code), first_line(e)) for e in error_classes()]
    text = (
        "Every expected error is an `hfx.errors.HfxError` with `message` (what happened) and `fix` (what to do next). "
        "The command line prints both on stderr and exits with the error's code."
    )
    lines = table(("error", "a kind of", "exit code", "meaning"), rows)
    return "\n".join(["## Errors", "", _filled(text), "", *lines, ""])


def _parameters_section() -> str:
    rows = [(code(folder), code(name), meaning) for folder, name, meaning in PARAMETERS]
    text = (
        "Parameters in the `config.pbtxt` of published models. `hfx tune --apply` changes them safely; after an edit "
        "by hand, `hfx lint` reports that the file is not the published one. Instances, batch sizes and queue delays "
        "are Triton's own fields."
    )
    lines = table(("folder", "parameter", "meaning"), rows)
    return "\n".join(["## Configuration parameters", "", _filled(text), "", *lines, ""])


def metrics_page() -> str:
    """The metrics of generators and of the HTTP front."""
    text = (
        "Generators publish these on `/metrics`, with the label `model`, beside Triton's own (`nv_...`); encoders in "
        "one hop on CPUs publish `hfx_state_checks_total`. "
        "`hfx_restarts_total` and all metrics below it are published by `hfx serve` and its HTTP front. Buckets are "
        "counters with the label `le`, for `histogram_quantile`, beside counters that end in `_sum` and `_count`."
    )
    rows = [(code(name), kind, ", ".join(map(code, labels)), meaning) for name, kind, labels, meaning in metrics()]
    return page("Metrics", text, ("metric", "type", "other labels", "meaning"), rows)


def metrics() -> Iterator[tuple[str, str, tuple[str, ...], str]]:
    """Name, type, labels and meaning of every metric."""
    from hfx.front.metrics import FAMILIES
    from hfx.python_backends.engine.core import Stats
    from hfx.python_backends.serving.metrics import counts, histograms

    stats = Stats(prompt_runs=Counter({(1, 1): 1}), capture_refusal="reason")  # without values they have no metrics
    samples = {sample.name: sample for sample in (*counts(stats, Counter()), *histograms(stats))}
    for name, sample in samples.items():
        if not name.endswith(("_seconds_sum", "_seconds_count")):  # of histograms
            yield name, sample.kind, tuple(label for label, _ in sample.labels), sample.description
    for each in FAMILIES:
        yield each.name, each.kind(each.name, each.text).type, tuple(each.labels), each.text


def page(title: str, text: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A page of one table."""
    return "\n".join([f"# {title}", "", wrapped(text), "", *table(columns, rows), ""])


def wrapped(text: str) -> str:
    """`text` behind the note that a page is generated, in lines of a page's width."""
    return _filled(f"{MADE} {text}")


def _filled(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a Markdown table."""
    for row in (columns, ["---"] * len(columns), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |"


def code(text: str) -> str:
    """`text` as code."""
    return f"`{text}`"


def first_line(value: Any) -> str:
    """The first sentence of a docstring."""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


# The Python API


def api_page() -> str:
    """The public names of hfx.client: classes with their methods and fields."""
    import hfx.client

    text = (
        "The public names of `hfx.client`, and the [errors](#errors). Examples: [Python client](client.md). For "
        "a transport of your own see `help()` of `Transport`, `Request` and `Stream`."
    )
    head = f"# Python API\n\n{wrapped(text)}\n"
    shown = [name for name in hfx.client.__all__ if name not in TRANSPORTS]
    sections = (_class_section(getattr(hfx.client, name)) for name in shown)
    return "\n".join([head, *sections, _errors_section()])


def _class_section(cls: type) -> str:
    if cls.__name__ == "GenerationSettings":
        text = "How a text is generated. Every field is None by default; [Generation settings](settings.md) lists them."
        return "\n".join([f"## {cls.__name__}", "", text, ""])
    lines = [f"## {cls.__name__}", "", *_paragraphs(cls), ""]
    bases = [base for base in cls.__mro__ if base.__module__.startswith("hfx.")]
    made = any("__init__" in vars(base) for base in bases if not base.__name__.startswith("_"))
    if not issubclass(cls, Warning) and (is_dataclass(cls) or made):
        lines += ["```text", f"{cls.__name__}{_signature(cls)}", "```", ""]
    if cls.__name__ == "AsyncClient":
        return "\n".join([*lines, "The methods are those of [Client](#client), to be awaited.", ""])
    found = {name: member for base in reversed(bases) for name, member in vars(base).items()}
    names = dict.fromkeys(name for base in bases for name in vars(base) if not name.startswith("_"))
    rows = [
        (code(_shown(name, found[name])), first_line(_function(found[name])))
        for name in names
        if _function(found[name])
    ]
    return "\n".join([*lines, *(table(("member", "meaning"), rows) if rows else ()), ""])


def _function(member: Any) -> Any:
    if isinstance(member, property):
        return member.fget
    return member if inspect.isfunction(member) else getattr(member, "__func__", None)


def _shown(name: str, member: Any) -> str:
    if isinstance(member, property):
        return f".{name}"
    signature = inspect.signature(_function(member))
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name not in ("self", "cls")]
    shown = str(signature.replace(parameters=parameters, return_annotation=signature.empty))
    return f"{'await ' if inspect.iscoroutinefunction(member) else ''}{name}{shown}"


def _signature(cls: type) -> str:
    """The parameters without their types."""
    signature = inspect.signature(cls)
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=signature.empty))


def _paragraphs(cls: type) -> list[str]:
    """The docstring, lists of fields in it as they are written; nothing for one that dataclasses made."""
    text = inspect.getdoc(cls) or ""
    parts = [] if text.startswith(f"{cls.__name__}(") else text.split("\n\n")
    return "\n\n".join(f"```text\n{part}\n```" if "`  " in part else part for part in parts).splitlines()
