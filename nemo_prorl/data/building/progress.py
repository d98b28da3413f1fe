"""Progress bars on standard error; silent where nobody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def watched(items: Iterable[T], what: str, total: int | None) -> Iterable[T]:
    """The items, with a bar of how many have passed."""
    return tqdm(items, desc=what, total=total, unit=" rows", disable=None, dynamic_ncols=True, smoothing=0.05)


@contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar that moves on by one at each call of what it gives."""
    with tqdm(
        desc=what, total=total, unit=" replies", disable=None, dynamic_ncols=True, smoothing=0.05
    ) as shown:

        def tick() -> None:
            shown.update()

        yield tick
