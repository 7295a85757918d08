"""`python -m bench.docs`: README's performance section, docs/perf-scenarios.md and its pictures, from result files.

Everything follows from the files in bench/results: the same files give the same texts. Measures nothing.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.goals import Goal, goals, goals_table, published_table, to_markdown
from bench.scenarios import SCENARIOS
from bench.scenarios.scenario import HFX, IN_PROCESS, Case
from bench.scenarios.verdicts import Groups, grouped, pace, result_table
from hfx.errors import HfxError, UsageError
from hfx.perf.report.figures import FIGURES
from hfx.perf.report.numbers import NOTHING, number, ratio
from hfx.perf.report.tables import Table, warnings
from hfx.perf.results import Machine, Result, ratios, read_result

RESULTS = Path("bench/results")
README, PAGE, PICTURES = Path("README.md"), Path("docs/perf-scenarios.md"), Path("docs/img")
BEGIN, END = "<!-- performance: begin -->", "<!-- performance: end -->"
NONE = "No result is in bench/results yet: `make bench` measures, `make bench-docs` writes this section.\n"
CHARTS = {  # of the report's, those that show most of a scenario
    "mlserver-burst": ("throughput",),
    "classify": ("latency-throughput-16-tokens", "latency-throughput-128-tokens"),
    "chat-ragged": ("first-token",),
}
LINE = 120  # characters
ON_README = ("mlserver-burst", "throughput")
KEPT_VERSIONS = ("hfx", "torch", "transformers", "onnxruntime", "openvino", "tritonclient", "nvidia-pytriton")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write all pages below the folder that is given, the current one without it."""
    words = sys.argv[1:] if arguments is None else arguments
    root = Path(words[0]) if words else Path()
    try:
        results = read_results(root / RESULTS)
        pictures = drawn(results)
        _write(root / README, readme_section(results, pictures))
        _write(root / PAGE, page_section(results, pictures))
        _draw(root / PICTURES, pictures)
    except HfxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{README}, {PAGE} and {len(pictures)} pictures in {PICTURES}, from {len(results)} results")
    return 0


def read_results(folder: Path) -> list[Result]:
    """The results of scenarios in FOLDER, in the table's order. Raises UsageError for a file that is none."""
    found = [read_result(path) for name in SCENARIOS if (path := folder / f"{name}.json").is_file()]
    for result in found:
        if any(result.details.get(name) for name in ("quick", "model", "stopped")):
            reason = "a smoke run, was stopped early, or is of another model"
            raise UsageError(f"{result.title}: {reason}.", f'make bench SCENARIOS="{_name(result)}"')
    return found


def readme_section(results: Sequence[Result], pictures: Mapping[str, str] = {}) -> str:
    """The short form: requests a second of hfx, and how many times those of each peer."""
    if not results:
        return NONE
    labels = _peer_labels(results)
    rows = [row for result in results for row in _rows(result, labels)]
    columns = ("scenario", "load", "hfx int8", *(f"hfx / {label}" for label in labels))
    lines = [
        _wrapped(
            f"`make bench`, {_machine([result.machine for result in results])}. Full-size shapes with random weights "
            "behind a real Triton; peers run the same weights in process (MLServer: as a server), in turn with hfx. "
            "Ratios are medians of the ratios within a round, and are only taken where all wrote the same number of "
            "tokens. `make bench-docs` writes this section; all figures are in "
            "[docs/perf-scenarios.md](docs/perf-scenarios.md)."
        ),
        "",
        to_markdown(Table("", columns, tuple(rows), words=2)),
        *_picture(*ON_README, pictures, "docs/img"),
        _wrapped(_goals(results)),
    ]
    return "\n".join(lines) + "\n"


def _goals(results: Sequence[Result]) -> str:
    found = [(result, goal) for result in results for goal in goals(result)]
    missed = [f"{_name(result)}: {goal.words} {_beside(goal)}" for result, goal in found if goal.met is False]
    words = f"{sum(goal.met is True for _, goal in found)} of {len(found)} goals are met."
    return f"{words} Missed: {'; '.join(missed)}." if missed else words


def _beside(goal: Goal) -> str:
    wanted = f"at least {number(goal.least)}" if goal.least is not None else f"at most {number(goal.most)}"
    return f"({number(goal.value)}, wanted {wanted})"


def page_section(results: Sequence[Result], pictures: Mapping[str, str] = {}) -> str:
    """Everything: a part for each scenario."""
    return "\n".join(_part(result, pictures) for result in results) if results else NONE


def drawn(results: Sequence[Result]) -> dict[str, str]:
    """The pictures by file name, light and dark."""
    from hfx.perf.report.charts import DARK, LIGHT, charts, svg

    found = {}
    for result in results:
        for chart in charts(result):
            if chart.name in CHARTS.get(_name(result), ()):
                for suffix, colours in (("", LIGHT), ("-dark", DARK)):
                    found[f"perf-{_name(result)}-{chart.name}{suffix}.svg"] = svg(chart, colours)
    return found


def replaced(text: str, body: str, where: str) -> str:
    """TEXT with BODY between the two marks. Raises UsageError where there are none."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UsageError(f"{where} lacks the lines {BEGIN} and {END}, or has them twice.", "Add them where it belongs.")
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n\n{body.strip()}\n\n{END}{rest.split(END)[1]}"


def _part(result: Result, pictures: Mapping[str, str]) -> str:
    title = SCENARIOS[_name(result)].title
    where = f"{_machine([result.machine])}. {_versions(result.machine)}. Measured {result.created[:10]}."
    lines = [f"## {_name(result)}", "", f"{title[0].upper()}{title[1:]}.", "", _wrapped(where), ""]
    for chart in CHARTS.get(_name(result), ()):
        lines += _picture(_name(result), chart, pictures, "img")
    tables = (replace(result_table(result), title="Figures"), goals_table(goals(result)), published_table(result))
    for table in tables:
        lines += [f"### {table.title}", "", to_markdown(table)] if table else []
    lines += [f"- {words}" for words in warnings(result)]
    return "\n".join(lines) + "\n"


def _rows(result: Result, labels: Sequence[str]) -> list[tuple[str, ...]]:
    scenario, found = SCENARIOS[_name(result)], grouped(result.runs)
    return [
        (scenario.name, case.words, _ours(case, result, found), *(_times(case, result, found, each) for each in labels))
        for case in scenario.cases
    ]


def _ours(case: Case, result: Result, found: Groups) -> str:
    group = found.get((case.key, result.base))
    if group is None:
        return NOTHING
    name = "goodput" if case.slo else "tokens" if case.new_tokens else "throughput"
    spread = group.spread(FIGURES[name].of)
    if spread is None:
        return NOTHING
    return f"{100 * spread.median:.0f} % good" if case.slo else f"{number(spread.median)} {FIGURES[name].title}"


def _times(case: Case, result: Result, found: Groups, label: str) -> str:
    ours, theirs = found.get((case.key, result.base)), found.get((case.key, label))
    spread = ratios(ours, theirs, pace) if ours and theirs else None
    return ratio(spread.median) if spread else NOTHING


def _peer_labels(results: Sequence[Result]) -> list[str]:
    labels = dict.fromkeys(run.subject.label for result in results for run in result.runs)
    return [label for label in labels if not label.startswith(f"{HFX} ") and not label.endswith(IN_PROCESS)]


def _name(result: Result) -> str:
    return str(result.details["scenario"])


def _machine(machines: Sequence[Machine]) -> str:
    """Processors and, where there was other work, how much at most."""
    load = max(machine.load for machine in machines)
    busy = f", load {number(load)} at the start" if load > max(machine.cores for machine in machines) / 2 else ""
    return "; ".join(dict.fromkeys(f"{machine.processor}, {machine.cores} cores" for machine in machines)) + busy


def _wrapped(text: str) -> str:
    return textwrap.fill(text, LINE, break_long_words=False, break_on_hyphens=False)


def _versions(machine: Machine) -> str:
    return ", ".join(f"{name} {machine.versions[name]}" for name in KEPT_VERSIONS if name in machine.versions)


def _picture(name: str, chart: str, pictures: Mapping[str, str], folder: str) -> list[str]:
    light, dark = f"perf-{name}-{chart}.svg", f"perf-{name}-{chart}-dark.svg"
    if light not in pictures:
        return []
    return [
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{folder}/{dark}">'
        f'<img src="{folder}/{light}" alt="{name}: {chart.replace("-", " ")}, as in the table"></picture>',
        "",
    ]


def _write(path: Path, body: str) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} can't be read: {error.strerror}.", "Run it in the checkout: make bench-docs"
        ) from error
    path.write_text(replaced(text, body, str(path)), encoding="utf-8")


def _draw(folder: Path, pictures: Mapping[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.glob("perf-*.svg"):
        if path.name not in pictures:
            path.unlink()
    for name, text in pictures.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
