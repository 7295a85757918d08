"""`hfx deploy check URL`: the answers of a server against those that the exports recorded from their checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfx.cli.connection import connect
from hfx.cli.deploy.dialects import UNCOMPARED, asked_model, check_tasks, connected, dialect_ask
from hfx.cli.output import Reporter
from hfx.errors import UsageError, VerificationFailed
from hfx.names import GENERATION_TASKS

if TYPE_CHECKING:
    from hfx.cli.deploy.check import ServerOptions
    from hfx.exporter.verify import Ask, Published


def check_server(report: Reporter, url: str, names: Sequence[str], options: ServerOptions) -> None:
    """Compare the models `names` (none: all of the repository) and print their figures. Raises VerificationFailed."""
    from hfx.exporter.verify import open_published
    from hfx.repository import models

    repository = options.repository or Path("model_repository")
    chosen = names or [entry.name for entry in models(repository) if entry.manifest]
    if not chosen:
        raise UsageError(f"There is no model in {repository}.", "Give --repository DIR with the published models.")
    published = [open_published(repository, name) for name in chosen]
    with _asking(url, repository, published, options) as ask_of:
        checked = [_checked(report, each, ask_of(each), options) for each in published]
    failed = [each["name"] for each in checked if "error" in each]
    report.result(
        {"url": url, "through": options.through or "v2", "models": checked}, [_line(each) for each in checked]
    )
    if failed:
        raise VerificationFailed(
            f"{', '.join(failed)} behind {url} does not answer like the checkpoint.",
            f"Check that the server serves the models of {repository} (`hfx lint`), and deploy them again.",
        )


@contextmanager
def _asking(
    url: str, repository: Path, published: Sequence[Published], options: ServerOptions
) -> Iterator[Callable[[Published], Ask]]:
    """A function that sends requests to a model, for each model: by Triton's protocol, or in a dialect."""
    from hfx.cli.verify import served_ask

    dialect, connection = options.dialect, options.connection(url)
    if dialect:
        check_tasks(dialect, {each.manifest.name: each.task.task for each in published})
    with ExitStack() as opened:
        port = opened.enter_context(connected(connection, dialect)) if dialect else None
        client = opened.enter_context(connect(connection))
        if options.wait is not None:
            client.wait_ready(options.wait)
        for each in published:
            client.metadata(each.manifest.name)  # names the models that there are instead
        if dialect and port:
            yield lambda each: dialect_ask(
                port, dialect, asked_model(repository, each.manifest.name, each.task.task), options.timeout
            )
        else:
            yield lambda each: served_ask(client, repository, each.manifest.name)


def _checked(report: Reporter, published: Published, ask: Ask, options: ServerOptions) -> dict[str, Any]:
    """What the comparison of one model gave: its figures, or the error."""
    from hfx.exporter.verify import against_checkpoint

    name = published.manifest.name
    with report.progress(f"Asking {name}"):
        try:
            figures = against_checkpoint(published, ask, options.device or "cpu", options.max_drop)
        except VerificationFailed as error:
            return {"name": name, "error": error.message}
    is_less = options.dialect and published.task.task in GENERATION_TASKS
    return {"name": name, **figures, **({"not_compared": list(UNCOMPARED)} if is_less else {})}


def _line(checked: dict[str, Any]) -> str:
    from hfx.cli.verify import agreement

    if "error" in checked:
        return f"{checked['name']}: {checked['error']}"
    left_out = f" ({', '.join(checked['not_compared'])} not compared)" if "not_compared" in checked else ""
    return f"{checked['name']}: {agreement(checked)}{left_out}"
