"""Large JSON is read in a thread, or in a process of its own: while Python parses 10 MB, it answers nothing else.

Run as a module, it is that process: it calls functions that come pickled on its standard input, from the front alone.
"""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from hfx.front.guard import Disconnected
from hfx.front.refusals import Refusal, overloaded
from hfx.process import ends_with_parent, kill, spawn

if TYPE_CHECKING:
    from hfx.front.connection import ClientConnection

Result = TypeVar("Result")
LARGE_JSON = 1 << 14  # bytes, which take up to 4 ms to read; 200,000 values take 250 ms
LARGEST_JSON = 1 << 18  # bytes that are read in the front's process
COMMAND = (sys.executable, "-P", "-m", "hfx.front.large_bodies")


class LargeBodies:
    """The process, which starts with the first large body; for one event loop. Callers take turns."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._thread_turn = asyncio.Lock()

    async def read(
        self, client: ClientConnection, size: int, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """The result of `function`, which reads JSON of `size` bytes: at once, in a thread, or in the process.

        Raises as `call`.
        """
        if size <= LARGE_JSON:
            return function(*arguments)
        if size > LARGEST_JSON:
            return await self.call(client, function, *arguments)
        async with self._thread_turn:
            if client.has_left:
                raise Disconnected
            return await asyncio.to_thread(function, *arguments)

    async def call(self, client: ClientConnection, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a module's `function` for `client`.

        Raises Refusal, its own or 503, and Disconnected where the client left before its turn.
        """
        # A call that is cancelled goes on to its end: what the process writes for it is not the next call's.
        return await asyncio.shield(asyncio.create_task(self._in_turn(client, function, *arguments)))

    async def _in_turn(self, client: ClientConnection, function: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turn:
            if client.has_left:
                raise Disconnected
            try:
                if self._process is None:  # by the loop's thread, with which the process ends
                    self._process = spawn(ends_with_parent(COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                result, refused = await asyncio.to_thread(_exchange, self._process, (function, arguments))
            except (OSError, EOFError, pickle.UnpicklingError):  # such as where the machine has no memory left
                self.close()
                raise overloaded("The process that reads large bodies has ended, or did not start.") from None
        if refused is not None:
            raise refused
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            kill(self._process)
            self._process.wait()
            self._process = None


def _exchange(process: subprocess.Popen[bytes], call: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    assert process.stdin is not None and process.stdout is not None
    pickle.dump(call, process.stdin, pickle.HIGHEST_PROTOCOL)
    process.stdin.flush()
    return pickle.load(process.stdout)


def main() -> None:
    """Call functions until the input ends."""
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer: tuple[Any, Refusal | None]
        try:
            answer = function(*arguments), None
        except Refusal as refusal:
            answer = None, refusal
        pickle.dump(answer, sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
