"""`hfx export`: export, verify and publish a checkpoint. plan.py makes the decisions, pipeline.py does the work."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hfx.cli.commands import grouped, load
from hfx.cli.connection import model_names
from hfx.cli.export_summary import details, next_command, summary
from hfx.cli.output import reporter
from hfx.errors import HfxError, UsageError
from hfx.exporter.options import ExportOptions
from hfx.options import Option

if TYPE_CHECKING:
    from hfx.exporter.source import Checkpoint
    from hfx.manifest import Manifest


@grouped
def command(
    context: typer.Context,
    options: ExportOptions,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A folder, or a hub id such as org/name.")
    ] = None,
    again: Annotated[
        str | None,
        Option(
            help="Export this published model again: the same checkpoint with the same options. Give MODEL only if "
            "the checkpoint has moved.",
            metavar="NAME",
            autocompletion=model_names,
        ),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan and exit.")] = False,
    verbose: Annotated[bool, Option("--verbose", help="Print all measured figures.")] = False,
) -> None:
    """Export a Hugging Face checkpoint, verify it, and publish it for Triton.

    Examples:
      hfx export distilbert/distilbert-base-uncased-finetuned-sst-2-english --name sentiment --quantize
      hfx export ./my-checkpoint --name reviews --verify-data dev.csv
      hfx export ./my-checkpoint --dry-run
      hfx export distilbert/distilbert-base-uncased --adapters ./adapters --quantize
      hfx export --again sentiment
    """
    from hfx.exporter.generation.plan import GeneratorPlan
    from hfx.exporter.pipeline import make_plan
    from hfx.exporter.quiet import import_models
    from hfx.exporter.source import open_checkpoint, open_config

    report = reporter(context)
    if again is not None:
        model, options = _again(context, again, model, options)
    elif model is None:
        raise UsageError("Give MODEL or --again.", "`hfx export --help` shows what it takes.")
    else:
        options = replace(options, command=_made_by(model))
    if options.adapters is not None or options.adapter:
        return _adapters(context, model, options, dry_run, verbose)
    checkpoint = (open_config if dry_run else open_checkpoint)(model, options.revision)
    if again is not None and not dry_run:  # a dry run hashes no weights
        _check_same(again, checkpoint, options)
    import_models()
    plan = make_plan(checkpoint, options)
    for warning in plan.settings.warnings if isinstance(plan, GeneratorPlan) else ():
        report.warn(warning)
    for note in plan.notes:
        report.note(note)
    if dry_run:
        report.result(plan.describe(), _plan_lines(plan.describe(), verbose))
        return
    from hfx.exporter.pipeline import export, steps_of

    steps = steps_of(plan)
    manifest = export(plan, report.numbered(len(steps)), steps)
    lines = summary(manifest, options.repository) + (details(manifest) if verbose else [])
    report.result(published(manifest, options.repository), [*lines, next_command(options.repository, manifest.name)])


def _adapters(context: typer.Context, model: str, options: ExportOptions, dry_run: bool, verbose: bool) -> None:
    """Export adapters of the backbone `model`. Those that fail don't keep the others from being published."""
    from hfx.exporter.adapters.export import export_set, named_adapters, read_set
    from hfx.exporter.source import open_checkpoint

    report = reporter(context)
    folders = named_adapters(options)
    chosen = read_set(open_checkpoint(model, options.revision), folders, options)
    if dry_run:
        report.result(chosen.describe(), chosen.lines())
        return
    for note in chosen.notes():
        report.note(note)
    manifests: list[Manifest] = []
    failures: dict[str, HfxError] = {}
    for name, outcome in export_set(chosen, report.numbered(len(folders))):
        if isinstance(outcome, HfxError):
            failures[name] = outcome
            report.warn(f"{name} was not published: {outcome.message}\n{outcome.fix}")
        else:
            manifests.append(outcome)
    lines = [
        line
        for manifest in manifests
        for line in [summary(manifest, options.repository)[0], *(details(manifest) if verbose else ())]
    ]
    lines += [next_command(options.repository, manifest.name) for manifest in manifests[:1]]
    report.result({"published": [published(manifest, options.repository) for manifest in manifests]}, lines)
    if failures:
        [first, *_] = failures.values()
        raise first.with_message(f"Not published: {', '.join(failures)}. The first reason: {first.message}")


def _again(context: typer.Context, name: str, model: str | None, options: ExportOptions) -> tuple[str, ExportOptions]:
    """Return the checkpoint and the options with which the published model NAME was exported, to replace it."""
    from hfx.exporter.adapters.part import RECORD
    from hfx.exporter.mixed_precision import read_search
    from hfx.repository.catalog import model as published_model
    from hfx.repository.config_pbtxt import CONFIG, MAX_CONFIG_BYTES, made_by
    from hfx.strict_json import read_text

    names = [each.name for each in fields(ExportOptions) if each.name in context.params and each.name != "repository"]
    if typed := [each for each in names if not _is_default(context, each)]:
        option = f"--{typed[0].replace('_', '-')}"
        raise UsageError(f"--again takes the options of the export before, not {option}.", "Leave one of them out.")
    manifest = published_model(options.repository, name)
    source = manifest.source
    command = made_by(read_text(options.repository / name / CONFIG, MAX_CONFIG_BYTES))
    words = shlex.split(command)
    if words[:2] != ["hfx", "export"]:
        fix = f"Type its options: hfx export MODEL --name {name} --force."
        raise UsageError(f"{name} was not made by `hfx export MODEL`, but by {command!r}.", fix)
    if RECORD in manifest.choices:
        raise UsageError(
            f"{name} is an adapter, and its manifest doesn't say in which folder the adapter was.",
            f"Export it with its folder: {_adapter_again(words, name)}.",
        )
    if model is None and source.revision is None and not Path(source.id).is_dir():
        fix = f"Give it: hfx export FOLDER --again {name}."
        raise UsageError(f"{name} was exported from a folder {source.id!r}, which is not here.", fix)
    before = load("export").make_context("hfx export", words[2:]).params
    chosen: dict[str, Any] = {each: before[each] for each in names} | {
        "name": name,
        "force": True,
        "command": command,
        "revision": source.revision if model is None else None,
        "verify_data": tuple(before["verify_data"] or ()),
        **{each: tuple(before[each] or ()) for each in ("answer", "safe_label", "threshold")},
        "searched": read_search(manifest),
    }
    return model or source.id, replace(options, **chosen)


def _adapter_again(words: list[str], name: str) -> str:
    """Return the command that exports one of the adapters again that the command `words` exported."""
    kept, rest = list[str](), iter(words)
    for word in rest:
        if word in ("--adapters", "--adapter"):
            next(rest, None)
        elif word != "--force" and not word.startswith(("--adapters=", "--adapter=")):
            kept.append(word)
    return f"{shlex.join(kept)} --adapter {name}=FOLDER --force"


def _check_same(name: str, checkpoint: Checkpoint, options: ExportOptions) -> None:
    """Raise UsageError unless the published model NAME was exported from this checkpoint."""
    from hfx.repository.catalog import model as published_model

    source = published_model(options.repository, name).source
    if (found := checkpoint.sha256()) != source.sha256:
        raise UsageError(
            f"The checkpoint {checkpoint.folder} (sha256 {found[:12]}) is not the one that {name} was exported from: "
            f"{source.id} (sha256 {source.sha256[:12]}).",
            f"Give the folder of that one: hfx export FOLDER --again {name}. To replace {name} by this one, leave "
            f"--again out: hfx export {checkpoint.id} --name {name} --force, with the options of `{options.command}`.",
        )


def _is_default(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)  # an enum of typer's own copy of click, or of click
    return source is None or source.name.startswith("DEFAULT")


def published(manifest: Manifest, repository: Path) -> dict[str, Any]:
    """Return the description of a published model that `--json` prints."""
    return {
        "name": manifest.name,
        "task": str(manifest.task),
        "repository": str(repository),
        "folders": list(manifest.folders),
        "precision": {"cpu": manifest.precision.cpu, "gpu": manifest.precision.gpu},
        "parity": dict(manifest.parity),
        "choices": dict(manifest.choices),
    }


def _made_by(model: str) -> str:
    """Return the command as generated files quote it: options as typed, but no folder of this machine."""
    return "hfx " + shlex.join(_without_folder(argument, model) for argument in sys.argv[1:])


def _without_folder(argument: str, model: str) -> str:
    if argument.startswith(("/", "~", "..")) or (argument == model and Path(argument).exists()):
        return Path(argument).name
    name, _, path = argument.partition("=")  # --adapter NAME=FOLDER
    return f"{name}={Path(path).name}" if path.startswith(("/", "~", "..")) else argument


def _plan_lines(plan: Mapping[str, object], verbose: bool) -> list[str]:
    """Return a plan as lines of text; with `verbose`, also the widths that batches are padded to."""
    shown = {key: value for key, value in plan.items() if verbose or key != "widths"}
    texts = {key.replace("_", " "): _plain(value) for key, value in shown.items()}
    return [f"{key:15} {text}" for key, text in texts.items() if text]


def _plain(value: object) -> str:
    """Return a value of a plan as text; empty if the plan leaves it out."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items() if entry is not None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str("" if value is None else value)
