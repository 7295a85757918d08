"""The closed error tree of hfx.

Every failure that a user can cause or fix has one of these classes. Each class has an exit code; each instance says
what happened and, in `fix`, what to do next. Errors are printed elsewhere.

    HfxError                    1   unexpected
      UsageError                2   a name, option or value that can't be taken
        NativeMissing               the native kernels were not built, or not for this system
      SourceError               3   the checkpoint can't be used
        CheckpointMissing           no such folder, or the hub can't be reached
        CheckpointCorrupt           a config, weight or tokenizer file is damaged or does not fit the others
        CheckpointUnsafe            a pickle, link or path that hfx refuses to follow
        CheckpointUnsupported       an architecture or task that hfx can't export
        StorageFull                 no room for the export
        MemoryShort                 less memory than the checkpoint takes
      VerificationFailed        4   the exported model does not answer like the checkpoint
      ServerError               5   a server that does not start, answer or have the model
        ServerUnreachable           nothing listens, or the connection broke
        ServerBusy                  its queue is full
        RequestTimeout              no answer in time, or no new piece of a stream for too long
        RequestCancelled            the request was ended before its answer was complete
        RequestRefused              the server understood the request and refused it
          ModelUnknown          3   it has no model of this name
        LoadFailed                  a measurement without an answer, or with more errors than allowed
      FetchFailed               3   packages of a tool that can't be had here
      LintFailed                7   the repository breaks a rule
      JobError                  2   a batch job can't go on as requested: it is locked, damaged, incomplete or changed
        InputChanged                its input is not the planned one
      TooManyErrors             6   more rows of a batch job failed than its threshold allows
      JobCancelled            130   a batch job was cancelled from elsewhere
      Interrupted             130   Ctrl-C
      RepositoryError           2   the repository can't do it: a name is taken, it can't be written
        ModelMissing            3   it has no such model
        ModelCorrupt            3   a model's manifest or files are not as they were published
"""

from __future__ import annotations

from typing import Self


class HfxError(Exception):
    """The base class of all errors: `message` says what happened, and `fix` what to do next (may be empty)."""

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n{self.fix}" if self.fix else self.message

    def with_message(self, message: str) -> Self:
        """Return the same error with another `message`. This error becomes its cause."""
        error = type(self).__new__(type(self), message)
        vars(error).update(vars(self), message=message)
        error.__cause__ = self
        return error


class UsageError(HfxError):
    """A name, option or value that can't be taken."""

    exit_code = 2


class NativeMissing(UsageError):
    """The native kernels were not built, or are not for this system."""


class RepositoryError(HfxError):
    """The repository can't do it: a name is taken, or it can't be read or written."""

    exit_code = 2


class ModelMissing(RepositoryError):
    """The repository has no model of this name."""

    exit_code = 3


class ModelCorrupt(RepositoryError):
    """A model's manifest or files are damaged, or not as they were published."""

    exit_code = 3


class SourceError(HfxError):
    """The checkpoint can't be used."""

    exit_code = 3


class CheckpointMissing(SourceError):
    """No such folder, or the hub can't be reached."""


class CheckpointCorrupt(SourceError):
    """A config, weight or tokenizer file is damaged, or does not fit the others."""


class CheckpointUnsafe(SourceError):
    """A pickle, link or path that hfx refuses to follow."""


class CheckpointUnsupported(SourceError):
    """An architecture or task that hfx can't export."""


class StorageFull(SourceError):
    """No room on the disk for the export."""


class MemoryShort(SourceError):
    """The machine has less memory left than the checkpoint takes while it is exported."""


class VerificationFailed(HfxError):
    """The exported model does not answer like the checkpoint; nothing was published."""

    exit_code = 4


class ServerError(HfxError):
    """A server that does not start, answer, or have the model.

    `status` is the server's gRPC code or HTTP status for a failed request; `model` and `request_id` identify the
    request. Each is empty if there is none.
    """

    exit_code = 5

    def __init__(self, message: str, fix: str = "", *, status: str = "", model: str = "", request_id: str = "") -> None:
        super().__init__(message, fix)
        self.status = status
        self.model = model
        self.request_id = request_id

    def __str__(self) -> str:
        named = {"model": self.model, "status": self.status, "request": self.request_id}
        where = ", ".join(f"{name} {value}" for name, value in named.items() if value)
        return f"{super().__str__()}\n({where})" if where else super().__str__()


class ServerUnreachable(ServerError):
    """Nothing listens at the address, or the connection broke."""


class ServerBusy(ServerError):
    """The server's queue is full, or it accepts no more requests."""


class RequestTimeout(ServerError):
    """No answer came in time, or no new piece of a stream for too long."""


class RequestCancelled(ServerError):
    """The request was ended before its answer was complete."""


class RequestRefused(ServerError):
    """The server understood the request and refused it: the message is the server's."""


class ModelUnknown(RequestRefused):
    """The server has no model of this name."""

    exit_code = 3


class LoadFailed(ServerError):
    """A measurement in which no request succeeded, or more failed than was allowed."""


class FetchFailed(HfxError):
    """The packages of a tool can't be fetched; the message says which and why."""

    exit_code = 3

    def __str__(self) -> str:
        return self.message


class LintFailed(HfxError):
    """The repository breaks at least one lint rule."""

    exit_code = 7


class JobError(HfxError):
    """A batch job can't continue: its folder is locked, damaged, incomplete, or made for something else."""

    exit_code = 2


class InputChanged(JobError):
    """An input of a batch job has changed since the job was planned."""


class ModelChanged(JobError):
    """The model of a batch job is not the one that it was planned with."""


class TooManyErrors(HfxError):
    """More rows of a batch job failed than its error threshold allows; finished parts stay."""

    exit_code = 6


class Interrupted(HfxError):
    """Ctrl-C; `fix` says how to continue."""

    exit_code = 130


class JobCancelled(HfxError):
    """A batch job was cancelled by `hfx batch cancel`; finished parts stay."""

    exit_code = 130
