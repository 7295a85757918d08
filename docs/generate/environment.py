"""The generated page of environment variables: those of options, read from the command line, and the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate import tables
from hfx.cli.commands import COMMANDS, load

AZURE = "batch azure "  # commands that repeat those of another tool
KERNELS = "amx-int8, avx512-vnni, avx512-vnni-panels, avx-vnni, avx2; on aarch64 neon-i8mm, neon-dot"
# Name, what reads it, meaning.
OTHERS = (
    ("HFX_TOKEN", "`hfx infer`, `hfx deploy check` and other commands with `--url`", "API key of the server"),
    ("HFX_NATIVE_KERNELS", "native operators", f"{KERNELS}; or none; default: the fastest"),
    (
        "HFX_HUGE_PAGES",
        "engines",
        "0: do not copy weights into huge pages; several servers of a generator then share their memory",
    ),
    ("HFX_TRITON_BACKENDS", "`hfx serve --with local`", "folder of Triton's backends"),
    ("HFX_PERF_CACHE", "`hfx perf tools`, benchmarks", "folder of downloads; default: ~/.cache/hfx/perf"),
    ("HFX_WORKSPACE", "`hfx batch` (Azure ML)", "SUBSCRIPTION/RESOURCE_GROUP/WORKSPACE, in place of `--workspace`"),
    ("HFX_MODEL", "locustfile, Azure ML scripts", "the model, as `--model`"),
    ("HFX_COLUMN", "locustfile, Azure ML scripts", "the column, as `--column`"),
    ("HFX_SETTINGS", "Azure ML scripts", "JSON object of settings for each row"),
    ("HFX_DATA", "locustfile", "file of requests, as `--data`"),
    ("HFX_LENGTHS", "locustfile", "words of synthetic texts, as `--lengths`"),
    ("HFX_MAX_TOKENS", "locustfile", "as `--max-tokens`"),
    ("HFX_STREAM", "locustfile", "as `--stream`"),
    ("HFX_TIMEOUT", "locustfile", "seconds a request, as `--request-timeout`"),
    ("HFX_OPEN_REQUESTS", "engines", "internal: `hfx serve` sets it to the file in which engines count open requests"),
)
TESTS = (
    ("HFX_TEST_TRITON", "folder of a Triton installation, in place of nvidia-pytriton's"),
    ("HFX_TEST_ONNXRUNTIME_BACKEND", "folder of NVIDIA's onnxruntime backend"),
    ("HFX_TEST_SAGEMAKER_SERVE", "the `serve` script of AWS's Triton image"),
    ("HFX_TEST_GLINER", "folder of the packages gliner and gliclass (`make test-gliner`)"),
    ("HFX_TEST_PROCESSOR", "internal: the processor that a test simulates"),
    ("HFX_NATIVE_TEST_FLAGS", "flags of the compiler for the native library, such as sanitizers"),
    ("HFX_SOAK_SECONDS", "length of `make soak`; default: 600"),
    ("HFX_FUZZ_SECONDS", "how long each target of `tests/unit/native/fuzz.cpp` is fuzzed; default: 60"),
    ("HFX_FUZZ_CORPUS", "folder of the inputs that fuzzing finds, for its next run; default: none"),
    ("HFX_ZOO_CACHE", "folder of trained checkpoints and exports; default: ~/.cache/hfx/zoo"),
    ("HFX_BENCH_DATA", "folder of BillSum, for benchmarks and tests on its texts"),
)


def environment_page() -> str:
    """Every variable whose name begins with HFX_."""
    text = "Every environment variable that hfx reads. An option on the command line wins over its variable."
    parts = [f"# Environment variables\n\n{tables.wrapped(text)}\n"]
    columns = ("variable", "option", "meaning")
    parts += _section("Options", columns, [(tables.code(name), *rest) for name, *rest in option_variables()])
    parts += _section(
        "Others", ("variable", "read by", "meaning"), [(tables.code(name), *rest) for name, *rest in OTHERS]
    )
    parts += _section(
        "Tests and benchmarks", ("variable", "meaning"), [(tables.code(name), text) for name, text in TESTS]
    )
    return "\n".join(parts)


def option_variables() -> list[tuple[str, str, str]]:
    """Variable, option and meaning of every option that a variable can give."""
    found = {}
    for name, command in commands("", COMMANDS):
        for parameter in command.params:
            if variable := getattr(parameter, "envvar", None):
                found[variable] = (f"`hfx {name} {parameter.opts[0]}`", parameter.help.split("\n")[0])
    return [(variable, *rest) for variable, rest in found.items()]


def commands(prefix: str, table: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Every command by its whole name, the members of a group instead of it."""
    for name in table:
        command = load(name, table)
        if members := getattr(command, "table", None):
            yield from commands(f"{prefix}{name} ", members)
        else:
            yield prefix + name, command


def _section(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"## {title}\n", *tables.table(columns, rows), ""]
