"""Progress bars on standard error; silent if it is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")

_LOOK: dict[str, Any] = {"disable": None, "dynamic_ncols": True, "smoothing": 0.05}


def watched(items: Iterable[T], what: str, total: int | None) -> Iterable[T]:
    """Yields the items and shows how many have passed."""
    return tqdm(items, desc=what, total=total, unit=" rows", **_LOOK)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar that advances by one at each call of the function that it yields."""
    with tqdm(desc=what, total=total, unit=" replies", **_LOOK) as shown:
        yield shown.update
