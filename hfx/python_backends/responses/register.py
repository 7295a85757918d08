"""Who is cancelled by an id: the requests that are under way.

Owns the register; knows nothing of what a request is.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable

Cancel = Callable[[], None]


class Register:
    """Requests under way by their ids, which several may share. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancels: defaultdict[str, list[Cancel]] = defaultdict(list)

    def add(self, request_id: str, cancel: Cancel) -> None:
        """Note how a request is cancelled; requests without an id can't be."""
        if request_id:
            with self._lock:
                self._cancels[request_id].append(cancel)

    def remove(self, request_id: str, cancel: Cancel) -> None:
        """Forget a request that is over."""
        with self._lock:
            left = [each for each in self._cancels.pop(request_id, ()) if each != cancel]
            if left:
                self._cancels[request_id] = left

    def cancel(self, request_id: str) -> None:
        """Cancel every request of this id; one that is over, or never was, is nobody's loss."""
        with self._lock:
            cancels = tuple(self._cancels.get(request_id, ()))
        for cancel in cancels:
            cancel()

    def __len__(self) -> int:
        with self._lock:
            return len(self._cancels)
