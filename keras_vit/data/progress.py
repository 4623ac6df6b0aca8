"""Progress bars on a terminal, and work on many items in threads."""

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track

T = TypeVar("T")
AT_ONCE = 1024  # Items that are submitted to the threads at once.


def progress(
    items: Iterable[T], description: str, total: int, verbose: bool
) -> Iterable[T]:
    """Returns `items` under a progress bar, which is drawn only on a terminal."""
    return track(
        items,
        description=description,
        total=total,
        console=Console(stderr=True),
        transient=True,
        disable=not (verbose and sys.stderr.isatty()),
    )


def in_threads(
    function: Callable[[Any], T], items: Sequence[Any] | np.ndarray, description: str
) -> Iterator[T]:
    """Yields a function's results in order, under a progress bar.

    Args:
        function: called with each item.
        items: a list, or an array, which may be memory-mapped.
        description: text of the bar.
    """
    # The first item is before the others: threads that compile together are slower.
    starts = [0, *range(1, len(items), AT_ONCE), len(items)]
    with futures.ThreadPoolExecutor() as pool:
        results = (
            result
            for start, end in itertools.pairwise(starts)
            for result in pool.map(function, items[start:end])
        )
        yield from progress(results, description, len(items), True)
