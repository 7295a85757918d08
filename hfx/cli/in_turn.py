"""Many questions at a time, their answers in order, each as soon as it and those before it are there.

Questions are drawn in a thread of their own, so that a source that pauses (a pipe, a person) holds up no answer, and
only so many are held at a time, however many there are. This file must not know what is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from hfx.errors import HfxError

Question = TypeVar("Question")
Answer = TypeVar("Answer")


def in_turn(
    ask: Callable[[Question], Answer], questions: Iterable[Question], at_once: int
) -> Generator[tuple[Question, Answer | HfxError], None, None]:
    """Each question with its answer or its HfxError, in order; at most `at_once` are drawn and not yet answered.

    What else is raised, by `ask` or by `questions`, is raised here in its turn. Threads end by themselves when
    whoever they wait for lets go; leaving early draws no further question.
    """
    room = threading.Semaphore(at_once)
    places: SimpleQueue[tuple[Question, Future[Answer | HfxError]] | BaseException | None] = SimpleQueue()
    left = threading.Event()

    def draw() -> None:
        try:
            for question in questions:
                room.acquire()
                if left.is_set():
                    return
                place: Future[Answer | HfxError] = Future()
                places.put((question, place))
                _start(_answer, ask, question, place)
            places.put(None)
        except BaseException as error:
            places.put(error)

    _start(draw)
    try:
        while (found := places.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found[0], found[1].result()
            room.release()
    finally:
        left.set()
        room.release()


def _answer(ask: Callable[[Question], Answer], question: Question, place: Future[Answer | HfxError]) -> None:
    try:
        place.set_result(ask(question))
    except HfxError as error:
        place.set_result(error)
    except BaseException as error:
        place.set_exception(error)


def _start(work: Callable[..., None], *arguments: object) -> None:
    """A thread that nobody waits for: a command that is interrupted ends at once."""
    threading.Thread(target=work, args=arguments, daemon=True).start()
