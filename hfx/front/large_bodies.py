"""Reads large JSON in a thread or in a separate process, because Python answers nothing else while it parses 10 MB.

Run as a module, this file is that process. It calls functions that the front, and nothing else, sends pickled to its
standard input.
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
LARGEST_JSON = 1 << 18  # bytes; larger JSON is read in the other process
COMMAND = (sys.executable, "-P", "-m", "hfx.front.large_bodies")


class LargeBodies:
    """The process for large bodies, for use in one event loop. It starts with the first one; calls take turns."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = asyncio.Lock()
        self._thread_turn = asyncio.Lock()

    async def read(
        self, client: ClientConnection, size: int, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """Return the result of `function`, which reads JSON of `size` bytes.

        Depending on `size`, it runs directly, in a thread, or in the process. Raises the same exceptions as `call`.
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
        """Run a module-level `function` in the process for `client`, and return its result.

        Raises Refusal (from the function, or 503), and Disconnected if the client disconnects before its turn.
        """
        # A call that is cancelled still runs to its end; otherwise, the next call would read this call's result as its
        # own.
        return await asyncio.shield(asyncio.create_task(self._in_turn(client, function, *arguments)))

    async def _in_turn(self, client: ClientConnection, function: Callable[..., Result], *arguments: Any) -> Result:
        async with self._turn:
            if client.has_left:
                raise Disconnected
            try:
                if self._process is None:  # spawned in the loop's thread, because the process ends with that thread
                    self._process = spawn(ends_with_parent(COMMAND), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                result, refused = await asyncio.to_thread(_exchange, self._process, (function, arguments))
            except (OSError, EOFError, pickle.UnpicklingError):  # for example, if the machine has no memory left
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
    """Call the functions that arrive on standard input until it ends."""
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
