"""Prefetching: a background thread computes batches before they are needed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_END = object()
_PATIENCE = 0.1  # seconds between checks whether the consumer has stopped


class _Failed:
    """An exception of the background thread, passed to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def prefetch_items(items: Iterator[T], ahead: int) -> Iterator[T]:
    """The items in order, up to `ahead` of them computed in advance by a thread.

    An exception of the thread is raised here, after the items before it.  If the consumer stops early, the thread ends.
    """
    made: queue.Queue[object] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()
    thread = threading.Thread(target=_make, args=(items, made, stopped), name="wholestep-prefetch", daemon=True)
    thread.start()
    try:
        while (item := made.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=10 * _PATIENCE)


def _make(items: Iterator[object], made: queue.Queue[object], stopped: threading.Event) -> None:
    try:
        for item in items:
            if not _put(item, made, stopped):
                return
        _put(_END, made, stopped)
    except BaseException as error:  # the consumer raises it
        _put(_Failed(error), made, stopped)


def _put(item: object, made: queue.Queue[object], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            made.put(item, timeout=_PATIENCE)
            return True
        except queue.Full:
            continue
    return False
