"""Replaces the submission's function in a test program: records calls, and answers those whose results are known.

This file's text runs behind that of crossing.py in the cell of the test program. A session is one call of the function,
plus what the test program then does with a result that is not data: it calls a returned function, or methods of a
returned object. The submission repeats the same operations in the same order, so each session is sent as a whole.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:  # in the cell these names already exist
    from reward.graders.code.crossing import FIRST_ROOM, CannotCross, Reader, Writer, error_of

    class Unknown(BaseException):
        """Ends the test program's use of an answer that is not known yet."""

    class Ended(Exception):
        """Carries a StopIteration of the submission, so that it ends no loop of the test program."""


LAST_ROOM = 600_000
"""A test program that needs more characters of an iterator fails."""


class Asking:
    """All sessions of one run of a test program. `known`: pairs of a session and its replies. `in_place`: apply changes
    of arguments always, not only when the function returns None."""

    def __init__(self, known: list[Any], shared: dict[str, Any], in_place: bool) -> None:
        self.shared, self.in_place = shared, in_place
        self.sessions: list[Session] = []
        self.unsupported, self.failure = "", ""
        self.root: dict[str, dict[str, Any]] = {}
        for session, replies in known:
            branch = self.root
            for operation, reply in zip(session["ops"], replies, strict=True):
                node = branch.setdefault(json.dumps(operation), {"room": 0, "next": {}})
                if session["room"] >= node["room"]:
                    node["reply"], node["room"] = reply, session["room"]
                branch = node["next"]

    def candidate(self, *args: Any, **kwargs: Any) -> Any:
        return Session(self).do("call", None, None, args, kwargs)

    def told(self, failure: str, room: int) -> dict[str, Any]:
        """The run's message: the sessions to ask, up to `room` characters of them but at least one."""
        asked = {}
        for session in self.sessions:
            text = json.dumps(session.operations)
            if session.is_unknown and text not in asked and room > 0:
                asked[text] = {"ops": session.operations, "room": session.room}
                room -= len(text)
        failure = self.failure or failure
        return {"asked": [*asked.values()], "failure": failure, "unsupported": self.unsupported}

    def fail(self, why: str) -> NoReturn:
        self.failure = self.failure or why
        raise Unknown


class Session:
    """One call of the candidate, and the operations on its result."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.branch: dict[str, dict[str, Any]] | None = asking.root
        self.operations: list[list[Any]] = []
        self.room, self.is_unknown = FIRST_ROOM, False
        asking.sessions.append(self)

    def do(
        self, kind: str, number: int | None, name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        writer = Writer(self.asking.shared)
        try:
            written = writer.write((args, kwargs))
        except (CannotCross, RecursionError) as error:
            self.asking.unsupported = self.asking.unsupported or str(error)
            raise Unknown from None
        operation = [kind, number, name, written]
        self.operations.append(operation)
        node = None if self.branch is None else self.branch.get(json.dumps(operation))
        if node is None:
            self.branch, self.is_unknown = None, True
            raise Unknown
        self.branch = node["next"]
        return self.result(node, writer.objects)

    def result(self, node: dict[str, Any], objects: list[Any]) -> Any:
        """Turns a reply into the value, or raises its exception."""
        try:
            reply = node["reply"]
            changed = reply.get("changed", [])
            if changed and not self.asking.in_place and reply["value"] is not None:
                objects = copy.deepcopy(objects)
            reader = Reader(
                self.asking.shared, objects, self.iterator(node), lambda number: StandIn(self, number)
            )
            if "raised" in reply:
                value, error = None, error_of(reply["raised"], self.asking.shared, reader)
            else:
                value, error = reader.read(reply["value"]), None
            for number, content in changed:
                reader.fill(objects[number], content)
        except Exception:
            self.asking.fail("unreadable_result")
        if isinstance(error, (StopIteration, StopAsyncIteration)):
            ended = Ended(error)
            vars(error).update(__ended__=ended)
            raise ended
        if error is not None:
            raise error
        return value

    def iterator(self, node: dict[str, Any]) -> Callable[..., Iterator[Any]]:
        def iterate(items: list[Any], then: Any) -> Iterator[Any]:
            yield from items
            if then == "more":
                self.room, self.is_unknown = node["room"] * 16, True
                if self.room > LAST_ROOM:
                    self.is_unknown = False
                    self.asking.fail("endless_iterator")
                raise Unknown
            if then is not None:
                raise error_of(then["raised"], self.asking.shared, Reader(self.asking.shared))

        return iterate


class StandIn:
    """Stands for a result of the submission that is not data. It equals only itself."""

    def __init__(self, session: Session, number: int) -> None:
        vars(self).update(_session=session, _number=number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._session.do("call", self._number, None, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._session.do("get", self._number, name, (), {})

    def __len__(self) -> int:
        return self._session.do("len", self._number, None, (), {})

    def __getitem__(self, key: Any) -> Any:
        return self._session.do("item", self._number, None, (key,), {})

    def __contains__(self, item: Any) -> NoReturn:
        """Raises. The submission is never asked, nor about equality: an object that claims to contain everything would
        pass. A plain False would pass `not in`."""
        asking: Asking = self._session.asking
        asking.fail("in_asked_of_an_object")

    def __iter__(self) -> Iterator[Any]:
        return self._session.do("iter", self._number, None, (), {})

    def __str__(self) -> str:
        return self._session.do("str", self._number, None, (), {})

    def __bool__(self) -> bool:
        return True


def method(owner: Any, name: str) -> Any:
    """Returns `owner.name`, for an immediate call."""
    if type(owner) is not StandIn:
        return getattr(owner, name)
    return lambda *args, **kwargs: owner._session.do("call", owner._number, name, args, kwargs)
