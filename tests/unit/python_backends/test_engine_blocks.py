"""Block tables with a pencil: what is shared, what is copied, and that no block is lost or used twice."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from hfx.python_backends.engine.openvino.kv_cache import BLOCK, BlockPool, BlockTables, blocks_for

ROWS, LENGTH = 4, 5 * BLOCK


def tables_of(rows: int = ROWS, length: int = LENGTH) -> tuple[BlockPool, BlockTables]:
    pool = BlockPool(rows * blocks_for(length))
    return pool, BlockTables(pool, rows, length)


def blocks(tables: BlockTables, row: int) -> list[int]:
    return [int(block) for block in tables.of(row)]


def test_a_fork_shares_full_blocks_and_asks_for_a_copy_of_the_last() -> None:
    pool, tables = tables_of()
    tables.grow(0, 70)
    copied = tables.fork(0, 1, 70)
    ours, theirs = blocks(tables, 1), blocks(tables, 0)
    assert ours[:2] == theirs[:2] and ours[2] != theirs[2]
    assert copied == (theirs[2], ours[2])
    assert [pool.users[block] for block in theirs] == [2, 2, 1]


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    _, tables = tables_of()
    tables.grow(0, 2 * BLOCK + 1)  # the block for the next position is there already
    assert tables.fork(0, 1, 2 * BLOCK) is None
    assert blocks(tables, 1) == blocks(tables, 0)[:2]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_rows_do_each_holds_its_history_and_every_block_is_counted(seed: int) -> None:
    rng = random.Random(seed)
    pool, tables = tables_of()
    memory = np.full((ROWS * blocks_for(LENGTH), BLOCK), -1)
    histories: list[list[int]] = [[] for _ in range(ROWS)]
    for token in range(600):
        source, target = rng.sample(range(ROWS), 2)
        action = rng.choice(("write",) * 6 + ("fork", "fork", "move", "clear"))
        if action == "write":
            for row in range(ROWS):
                if len(histories[row]) < LENGTH:
                    histories[row].append(100 * token + row)
                    at = len(histories[row]) - 1
                    tables.grow(row, at + 1)
                    assert pool.users[int(tables.of(row)[at // BLOCK])] == 1, "a block that others read is written"
                    memory[tables.of(row)[at // BLOCK], at % BLOCK] = histories[row][-1]
        elif action == "fork":
            copied = tables.fork(source, target, len(histories[source]))
            if copied is not None:
                memory[copied[1]] = memory[copied[0]]
            histories[target] = list(histories[source])
        elif action == "move":
            tables.move(source, target)
            histories[target], histories[source] = histories[source], []
        else:
            tables.shrink(target, 0)
            histories[target] = []
        for row, history in enumerate(histories):
            assert memory[tables.of(row)].reshape(-1)[: len(history)].tolist() == history
        users = Counter(block for row in range(ROWS) for block in blocks(tables, row))
        assert users == {block: count for block, count in enumerate(pool.users) if count}
        assert len(pool.free) == len(pool.users) - len(users)
