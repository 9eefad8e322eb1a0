"""Runs many calls of one function: here, in processes of this machine, or on a Dask cluster.

A call that raises or whose process dies is its own result, so that it costs the others nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from fadiff.errors import InputError, one_line

Calls = Sequence[tuple[Any, ...]]
Ended = tuple[int, Any]
"""Index of a call, and its result: what the function returned, or an exception."""
Submit = Callable[[Callable[..., Any], Calls], Iterator[Ended]]


class WorkerDied(Exception):
    """A process that ended in the middle of a call: out of memory, most often."""


@contextmanager
def workers(jobs: int, cluster: str | None) -> Iterator[Submit]:
    """A function that runs calls somewhere and yields them as they end.

    Raises:
        InputError: Dask is not installed, or no scheduler answers.
    """
    if cluster is not None:
        try:
            from distributed import Client, as_completed
        except ImportError as error:
            raise InputError(f"--cluster: {one_line(error)}") from error
        try:
            client = Client(cluster, timeout="10s")
        except (OSError, ValueError) as error:
            raise InputError(f"--cluster {cluster}: no Dask scheduler answers: {error}") from error
        with client:

            def on_cluster(function: Callable[..., Any], calls: Calls) -> Iterator[Ended]:
                index = {client.submit(function, *call, pure=False): i for i, call in enumerate(calls)}
                for future in as_completed(index):
                    yield index[future], _result(future)

            yield on_cluster
    elif jobs == 1:
        yield _here
    else:
        yield lambda function, calls: _in_processes(jobs, function, calls)


def _here(function: Callable[..., Any], calls: Calls) -> Iterator[Ended]:
    for i, call in enumerate(calls):
        try:
            yield i, function(*call)
        except Exception as error:
            yield i, error


def _result(future: Future[Any]) -> Any:
    try:
        return future.result()
    except Exception as error:
        return error


def _in_processes(jobs: int, function: Callable[..., Any], calls: Calls) -> Iterator[Ended]:
    """Of calls that were under way when a process died, each runs alone: then it is sure which did it."""
    waiting = deque(range(len(calls)))
    while waiting:
        for suspect in (yield from _until_one_dies(jobs, function, calls, waiting)):
            if (yield from _until_one_dies(1, function, calls, deque([suspect]))):
                yield suspect, WorkerDied("its process died: out of memory, perhaps")


def _until_one_dies(
    jobs: int, function: Callable[..., Any], calls: Calls, waiting: deque[int]
) -> Generator[Ended, None, list[int]]:
    """Takes calls from those waiting until there are none; returns those under way when a process died."""
    context = multiprocessing.get_context("spawn")
    under_way: dict[Future[Any], int] = {}
    try:
        with ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_parent) as pool:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    under_way[pool.submit(function, *calls[waiting[0]])] = waiting[0]
                    waiting.popleft()
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    result = _result(future)
                    if isinstance(result, BrokenProcessPool):
                        return sorted(under_way.values())
                    yield under_way.pop(future), result
    except BrokenProcessPool:  # it died before it was given anything
        return sorted({*under_way.values(), waiting.popleft()})
    except BaseException:  # nobody waits for the rest
        for process in multiprocessing.active_children():
            process.kill()
        raise
    return []


def _end_with_parent() -> None:
    """Kill -9 of the parent ends this process, too."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
