"""The options of `hfx serve` about OpenAI's Batch API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from hfx.cli.serve_options import MIB
from hfx.options import option

if TYPE_CHECKING:
    from hfx.batch.api.process import BatchProcess
    from hfx.front.settings import Settings


@dataclass(frozen=True)
class BatchOptions:
    """OpenAI's Batch API at the HTTP port."""

    PANEL: ClassVar[str] = "Batch API"

    batch_dir: Path | None = option(
        None,
        "Serve /v1/files and /v1/batches, and keep their files in this folder.",
        envvar="HFX_BATCH_DIR",
        metavar="DIR",
    )
    batch_disk: int = option(10_240, "Largest size of the folder, in MiB.", min=1, metavar="MIB")
    batch_file: int = option(200, "Largest uploaded file, in MiB.", min=1, metavar="MIB")
    batch_lines: int = option(50_000, "Most requests in a file.", min=1, metavar="N")
    batch_requests: int = option(
        4, "Most batch requests in progress at a time, while there are no others.", min=1, max=1024
    )

    def process(self, body: int, report: Callable[[str], None]) -> BatchProcess | None:
        """Return the process of the Batch API, None without --batch-dir; `body` is the largest request in bytes."""
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
        """Return `settings` of the front, changed for the process `batches`."""
        background = batches.front.fileno()
        return replace(settings, batches=batches.url, background=background, background_requests=self.batch_requests)
