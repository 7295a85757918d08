"""The index of the prefix cache: the beginnings of prompts with keys and values in memory, as blocks of tokens.

The least recently used block is evicted first. The index has tokens and numbers, but no tensors: the memory of a block
belongs to a runner (kv_cache.py). All calls come from the engine's thread, and a plan is finished before the next is
made, so no block that a plan loads is evicted before the plan is run.
"""

from __future__ import annotations

import itertools
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from ..checks import Ids

BLOCK = 64  # tokens
DEFAULT_MB = 256
MOST_SEEN = 4096  # blocks of which only the tokens are stored, 0.8 KB each
SIGHTINGS = 2  # a block's keys and values are saved when it occurs the second time

Key = tuple[int, bytes]  # number of the block before, 0 for none, and tokens: equal keys mean equal beginnings
Saves = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class Block:
    """BLOCK tokens that begin a prompt or follow another block.

    `memory` is the number of the memory with their K/V; it is None if they are not saved.
    """

    number: int
    sightings: int = 0
    memory: int | None = None


class PrefixCache:
    """An index of up to `size` saved blocks, and of up to `most_seen` blocks of which only the tokens are stored.

    The memory of saved blocks is numbered from 0. With a `size` of 0, nothing is stored. A block is saved when it
    occurs the second time, so that prompts that share nothing cost no copies. The block before a known block is known,
    and the block before a saved block is saved, because it is always used more recently.
    """

    def __init__(self, size: int, most_seen: int = MOST_SEEN) -> None:
        self.size = size
        self.most_seen = most_seen
        self.free: dict[int, None] = dict.fromkeys(range(size))
        self.saved: OrderedDict[Key, Block] = OrderedDict()
        self.seen: OrderedDict[Key, Block] = OrderedDict()
        self._numbers = itertools.count(1)

    def cached(self, prompt: Ids) -> int:
        """Return how many tokens at the beginning of `prompt` need not be run: whole blocks, and never all tokens."""
        return BLOCK * len(self._saved(prompt))

    def load(self, prompt: Ids) -> Ids:
        """Return the memory of the cached blocks of `prompt`, in order, and mark them as used."""
        path = self._saved(prompt)
        self._touch([key for key, _ in path])
        return tuple(block.memory for _, block in path if block.memory is not None)

    def reserve(self, prompts: Sequence[Ids]) -> list[Saves]:
        """Return what to save of each prompt when it has been run, as (block of the prompt, memory).

        The memory counts as free until `add` is called, so that a plan that fails leaves nothing behind.
        """
        if not self.size:
            return [()] * len(prompts)
        paths = [self._path(prompt, len(prompt)) for prompt in prompts]
        for path in paths:
            self._touch([key for key, _ in path])
        taken: dict[Key, int] = {}
        saves = []
        for path in paths:
            of_prompt = []
            for at, (key, block) in enumerate(path):
                if block.memory is not None or key in taken:
                    continue
                if block.sightings + 1 < SIGHTINGS or not self._make_free(len(taken), paths):
                    break
                taken[key] = next(itertools.islice(self.free, len(taken), None))
                of_prompt.append((at, taken[key]))
            saves.append(tuple(of_prompt))
        return saves

    def add(self, prompt: Ids, saves: Saves) -> None:
        """Record that a prompt has been run, and that the memory reserved for it (`saves`) now has its blocks."""
        if not self.size:
            return
        memory, keys, before = dict(saves), [], 0
        for at in range(len(prompt) // BLOCK):
            key = (before, _packed(prompt, at))
            block = self._known(key)
            if block is None:
                block = self.seen[key] = Block(next(self._numbers))
            block.sightings += 1
            if at in memory:
                block.memory = memory[at]
                del self.free[memory[at]], self.seen[key]
                self.saved[key] = block
            keys.append(key)
            before = block.number
        self._touch(keys)
        self._trim()

    def _make_free(self, taken: int, paths: list[list[tuple[Key, Block]]]) -> bool:
        """Return whether there is memory beyond `taken` blocks; if necessary, evict the least recently used block.

        No block of `paths` is evicted. An evicted block counts as never seen, and is saved when it has occurred twice.
        """
        if len(self.free) > taken:
            return True
        oldest = next(iter(self.saved), None)
        if oldest is None or any(oldest == key for path in paths for key, _ in path):
            return False  # the blocks of `paths` were touched last, so no other block is left
        block = self.seen[oldest] = self.saved.pop(oldest)
        assert block.memory is not None
        self.free[block.memory] = None
        block.memory, block.sightings = None, 0
        self._trim()
        return True

    def _trim(self) -> None:
        while len(self.seen) > self.most_seen:
            self.seen.popitem(last=False)

    def _touch(self, keys: list[Key]) -> None:
        """Mark consecutive blocks as used. The first block becomes the most recently used."""
        for key in reversed(keys):
            (self.saved if key in self.saved else self.seen).move_to_end(key)

    def _known(self, key: Key) -> Block | None:
        return self.saved.get(key) or self.seen.get(key)

    def _path(self, prompt: Ids, length: int) -> list[tuple[Key, Block]]:
        """Return the known blocks at the beginning of the first `length` tokens of `prompt`."""
        path: list[tuple[Key, Block]] = []
        before = 0
        for at in range(length // BLOCK):
            key = (before, _packed(prompt, at))
            block = self._known(key)
            if block is None:
                break
            path.append((key, block))
            before = block.number
        return path

    def _saved(self, prompt: Ids) -> list[tuple[Key, Block]]:
        if not self.saved:
            return []
        path = self._path(prompt, len(prompt) - 1)
        return list(itertools.takewhile(lambda entry: entry[1].memory is not None, path))


def _packed(prompt: Ids, at: int) -> bytes:
    return array("q", prompt[at * BLOCK : (at + 1) * BLOCK]).tobytes()
