"""The process that watches Triton: its decisions about restarts, and what it tells the front."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from hfx.errors import ServerError
from hfx.front.settings import State
from hfx.triton.liveness import Death
from hfx.triton.recovery import Recovery
from hfx.triton.supervisor import CHECK_SECONDS
from tests.unit.simulation.network import Network
from tests.unit.simulation.triton import Triton
from tests.unit.simulation.world import Front

START_SECONDS = 0.5  # at most, for a start of Triton
FAILING = 0.2  # the share of starts that fail


class Supervisor:
    """Starts `triton` again after its ends, as Recovery decides, and reports the state to `front`."""

    replaceable = None  # the whole server is started again

    def __init__(self, network: Network, front: Front, triton: Triton) -> None:
        self._network, self._front, self._triton = network, front, triton
        self.starts = 0
        triton.restarts_itself = False

    def deaths(self) -> Sequence[Death]:
        """Return the death of Triton, if it has died."""
        return () if self._triton.is_up else (Death((), "Triton was killed"),)

    def restart(self) -> None:
        """Start Triton again. Raises ServerError if it ends meanwhile."""
        self.starts += 1
        time.sleep(self._network.random.random() * START_SECONDS)
        if self._network.random.random() < FAILING:
            raise ServerError("Triton has ended while it started.")
        self._triton.start()

    def run(self) -> None:
        """Watch Triton, in a process of its own."""
        recovery = Recovery(cast(Any, self), lambda line: None)
        while True:
            deaths = self.deaths()
            with suppress(BlockingIOError):
                self._front.control.send(State(recovery.verdict(deaths), recovery.attempts).to_message())
            self._network.readable(self._front.server._control)
            if due := recovery.due(deaths):
                recovery.recover(due)
            else:
                time.sleep(CHECK_SECONDS)
