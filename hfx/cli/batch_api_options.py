"""The options of `hfx serve` about OpenAI's Batch API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from typer import Option

from hfx.cli.serve_options import MIB

if TYPE_CHECKING:
    from hfx.batch.api.process import BatchProcess
    from hfx.front.settings import Settings


@dataclass(frozen=True)
class BatchOptions:
    """OpenAI's Batch API at the HTTP port."""

    PANEL: ClassVar[str] = "Batch API"

    batch_dir: Annotated[
        Path | None,
        Option(
            envvar="HFX_BATCH_DIR",
            help="Serve /v1/files and /v1/batches, and keep their files in this folder.",
            metavar="DIR",
        ),
    ] = None
    batch_disk: Annotated[int, Option(help="Largest size of the folder, in MiB.", min=1, metavar="MIB")] = 10_240
    batch_file: Annotated[int, Option(help="Largest uploaded file, in MiB.", min=1, metavar="MIB")] = 200
    batch_lines: Annotated[int, Option(help="Most requests in a file.", min=1, metavar="N")] = 50_000
    batch_requests: Annotated[
        int, Option(help="Most batch requests in progress at a time, while there are no others.", min=1, max=1024)
    ] = 4

    def process(self, body: int, report: Callable[[str], None]) -> BatchProcess | None:
        """The process of the Batch API, for requests of up to `body` bytes; None without --batch-dir."""
        if self.batch_dir is None:
            return None
        from hfx.batch.api.process import BatchProcess
        from hfx.batch.api.settings import ApiSettings

        settings = ApiSettings(
            folder=str(self.batch_dir.absolute()),
            disk=self.batch_disk * MIB,
            file=self.batch_file * MIB,
            lines=self.batch_lines,
            line=body,
            parallel=self.batch_requests,
        )
        return BatchProcess(settings, report)

    def of_front(self, settings: Settings, batches: BatchProcess) -> Settings:
        """The settings of a front beside `batches`."""
        background = batches.front.fileno()
        return replace(settings, batches=batches.url, background=background, background_requests=self.batch_requests)
