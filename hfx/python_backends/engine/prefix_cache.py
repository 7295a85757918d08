"""Which beginnings of prompts have keys and values in memory: blocks of tokens, the least recently used out first.

It holds tokens and numbers, no tensor: the memory behind a block's number is a runner's (kv_cache.py). All
calls come from the engine's thread, and a plan is finished before the next is made, so that what a plan loads stays.
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
MOST_SEEN = 4096  # blocks whose tokens alone are kept, 0.8 KB each
SIGHTINGS = 2  # with this one, a block's keys and values are saved

Key = tuple[int, bytes]  # the number of the block before, 0 for none, and the tokens: equal keys are equal beginnings
Saves = tuple[tuple[int, int], ...]


@dataclass(eq=False)
class Block:
    """BLOCK tokens behind those of another. `memory`: the number of what holds its keys and values, None for none."""

    number: int
    sightings: int = 0
    memory: int | None = None


class PrefixCache:
    """Memory for `size` blocks, numbered from 0; with 0, nothing is kept. `most_seen` more are known by their tokens.

    A block is saved when its beginning comes the second time, so that prompts that share nothing cost no copies. The
    block before one that is known is known, before one that is saved it is saved: it is always the more recently used.
    """

    def __init__(self, size: int, most_seen: int = MOST_SEEN) -> None:
        self.size = size
        self.most_seen = most_seen
        self.free: dict[int, None] = dict.fromkeys(range(size))
        self.saved: OrderedDict[Key, Block] = OrderedDict()
        self.seen: OrderedDict[Key, Block] = OrderedDict()
        self._numbers = itertools.count(1)

    def cached(self, prompt: Ids) -> int:
        """How many tokens at the beginning of `prompt` need not be run: whole blocks, and never all of it."""
        return BLOCK * len(self._saved(prompt))

    def load(self, prompt: Ids) -> Ids:
        """The memory of these tokens, in order."""
        path = self._saved(prompt)
        self._touch([key for key, _ in path])
        return tuple(block.memory for _, block in path if block.memory is not None)

    def reserve(self, prompts: Sequence[Ids]) -> list[Saves]:
        """Of each prompt what is to be saved when it has been run, as (block of the prompt, memory).

        The memory counts as free until `add` says that it holds the block: a plan that fails leaves nothing behind.
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
        """Say that a prompt has been run, and that `saves`, which was reserved for it, holds its blocks now."""
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
        """Whether there is memory beside so many: where there is none, that of the block that was not used longest.

        None of `paths` is given up. What was given up counts as never seen, and is saved at its next second time.
        """
        if len(self.free) > taken:
            return True
        oldest = next(iter(self.saved), None)
        if oldest is None or any(oldest == key for path in paths for key, _ in path):
            return False  # they were touched: all others are gone
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
        """Say that blocks, each behind the one before, are used: the first is the most recent then."""
        for key in reversed(keys):
            (self.saved if key in self.saved else self.seen).move_to_end(key)

    def _known(self, key: Key) -> Block | None:
        return self.saved.get(key) or self.seen.get(key)

    def _path(self, prompt: Ids, length: int) -> list[tuple[Key, Block]]:
        """The known blocks at the beginning of `prompt`, of its first `length` tokens."""
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
