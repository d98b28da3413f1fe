"""Serialises values between the two cells of a test program: as JSON, from which each side builds its own objects.

Both cells run this file, so it imports the standard library only. Scalars and lists are sent as they are; any other
value is {kind: content}. Mutable values are numbered in the order in which they are met, and {"r": number} refers to an
earlier one: so arguments can share values, and a function can change or return its arguments.

The reader does not trust its input. It builds values of the kinds below and of classes that both sides know by name
(`shared`: what the task's preamble defines), never calls a constructor of these classes, and never reads code.
"""

from __future__ import annotations

import builtins
import collections
import collections.abc
import datetime
import decimal
import enum
import fractions
import json
import math
import operator
from typing import Any

FIRST_ROOM = 2_000
"""Characters of an iterator's items that are sent at first; the other side can ask for more."""
ARGUMENT_ROOM = 100_000
_MUTABLE: dict[str, Any] = {"d": dict, "s": set, "a": bytearray, "q": collections.deque, "C": collections.Counter,
            "O": collections.OrderedDict, "E": collections.defaultdict}  # fmt: skip
_FACTORIES: dict[str, Any] = {known.__name__: known for known in (list, int, set, dict, str, float, bool)}
_VIEWS: dict[Any, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_HOMES: tuple[Any, ...] = (builtins, math, operator)


class CannotCross(TypeError):
    """A value is not plain data; the message names its type."""


class Writer:
    """Writes values. `objects`: the numbered values. `handles`: a list that collects values that are not data; without
    it, such a value raises CannotCross. `room`: characters of an iterator's items."""

    def __init__(
        self,
        shared: dict[str, Any],
        objects: Any = (),
        handles: list[Any] | None = None,
        room: int = ARGUMENT_ROOM,
    ) -> None:
        self.shared, self.handles, self.room = shared, handles, room
        self.objects = list(objects)
        self.numbers = {id(value): number for number, value in enumerate(self.objects)}

    def write(self, value: Any) -> Any:
        if value is None or type(value) in (bool, str):
            return value
        if type(value) is int:
            return value if -(10**300) < value < 10**300 else {"i": hex(value)}
        if type(value) is float:
            return value if value - value == 0 else {"f": repr(value)}
        if id(value) in self.numbers:
            return {"r": self.numbers[id(value)]}
        name = type(value).__name__
        is_shared = self.shared.get(name) is type(value)
        if is_shared and isinstance(value, enum.Enum):
            return {"e": [name, value.name]}
        if is_shared and isinstance(value, tuple):
            return {"n": [name, [self.write(item) for item in value]]}
        if kind := self.kind_of(value, is_shared):
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
            content = self.content(value)
            return content if kind == "l" else {kind: [name, content] if kind in "ox" else content}
        return self.write_immutable(value)

    def write_immutable(self, value: Any) -> Any:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return self.write(int(value))
        if isinstance(value, float):
            return self.write(float(value))
        if isinstance(value, complex):
            return {"c": [repr(value.real), repr(value.imag)]}
        if isinstance(value, bytes):
            return {"b": value.hex()}
        if isinstance(value, tuple):
            return {"t": [self.write(item) for item in value]}
        if isinstance(value, frozenset):
            return {"z": self.items_of_set(value)}
        if isinstance(value, range):
            return {"g": [value.start, value.stop, value.step]}
        if isinstance(value, decimal.Decimal):
            return {"D": str(value)}
        if isinstance(value, fractions.Fraction):
            return {"F": str(value)}
        if isinstance(value, datetime.timedelta):
            return {"T": ["timedelta", [value.days, value.seconds, value.microseconds]]}
        if isinstance(value, (datetime.date, datetime.time)):
            return {"T": [type(value).__name__, value.isoformat()]}
        if type(value) in _VIEWS:
            return {"v": [_VIEWS[type(value)], [self.write(item) for item in value]]}
        if isinstance(value, collections.abc.Iterator) and type(value).__module__ != "_io":
            return {"y": self.items_of(value)}
        if isinstance(value, type) and any(value is known for known in _FACTORIES.values()):
            return {"N": value.__name__}
        if self.handles is None:
            return self.name_of(value)
        self.handles.append(value)
        return {"h": len(self.handles) - 1}

    def kind_of(self, value: Any, is_shared: bool) -> str | None:
        """The kind of a mutable value: "l" a list, "o" an object of a shared class, "x" an object of a class without
        methods of its own; None for a value that is not mutable or not data."""
        if isinstance(value, list):
            return "l"
        for kind, known in _MUTABLE.items():
            if type(value) is known:
                return kind
        for kind, known in _MUTABLE.items():
            if isinstance(value, known):
                return kind
        plain = (type, BaseException, int, float, complex, str, bytes, tuple, frozenset)
        if is_shared and not isinstance(value, plain):
            return "o"
        return "x" if self.handles is None and is_record(value) else None

    def content(self, value: Any) -> Any:
        """Returns what a mutable value holds."""
        if isinstance(value, (list, collections.deque)):
            items = [self.write(item) for item in value]
            return [value.maxlen, items] if isinstance(value, collections.deque) else items
        if isinstance(value, dict):
            pairs = [[self.hashable(key), self.write(item)] for key, item in value.items()]
            if type(value) is not collections.defaultdict:
                return pairs
            factory = getattr(value.default_factory, "__name__", None)
            return [factory if factory in _FACTORIES else None, pairs]
        if isinstance(value, set):
            return self.items_of_set(value)
        if isinstance(value, bytearray):
            return value.hex()
        return [[key, self.write(item)] for key, item in state_of(value).items()]

    def items_of_set(self, value: Any) -> list[Any]:
        return sorted((self.hashable(item) for item in value), key=repr)

    def hashable(self, value: Any) -> Any:
        """Writes a key or a member of a set. Objects are refused: their order differs from run to run."""
        count = len(self.objects)
        written = self.write(value)
        if len(self.objects) != count or "r" in (written if isinstance(written, dict) else ()):
            raise CannotCross(type(value).__name__)
        return written

    def items_of(self, iterator: Any) -> list[Any]:
        """Returns [items, continuation]: null at the iterator's end, "more", or {"raised": ...}."""
        items: list[Any] = []
        room = self.room
        while room > 0:
            try:
                item = next(iterator)
            except StopIteration:
                return [items, None]
            except Exception as error:
                return [items, raised(error, self)]
            items.append(self.write(item))
            room -= len(json.dumps(items[-1])) + 2
        if self.handles is None:
            raise CannotCross("endless iterator")
        return [items, "more"]

    def name_of(self, value: Any) -> dict[str, Any]:
        """Names a function that both sides know."""
        name = getattr(value, "__name__", None)
        for home in _HOMES:
            if isinstance(name, str) and getattr(home, name, None) is value:
                return {"B": [_HOMES.index(home), name]}
        if isinstance(name, str) and self.shared.get(name) is value:
            return {"P": name}
        raise CannotCross(type(value).__name__)


class Reader:
    """Reads what a Writer wrote. `objects`: the numbered values. `iterate` makes an iterator from items and their
    continuation; `handle` makes what replaces a value that is not data; without `handle`, functions are read by
    name."""

    def __init__(
        self, shared: dict[str, Any], objects: Any = (), iterate: Any = None, handle: Any = None
    ) -> None:
        self.shared, self.iterate, self.handle = shared, iterate, handle
        self.objects = list(objects)

    def read(self, data: Any) -> Any:
        if not isinstance(data, (list, dict)):
            return data
        if isinstance(data, list):
            return self.fill(self.numbered([]), data)
        ((kind, content),) = data.items()
        if kind == "q":
            return self.fill(self.numbered(collections.deque(maxlen=content[0])), content)
        if kind in _MUTABLE:
            return self.fill(self.numbered(_MUTABLE[kind]()), content)
        if kind == "o":
            shared = self.shared[content[0]]
            return self.fill(self.numbered(object.__new__(shared)), content[1])
        if kind == "x" and self.handle is None:
            return self.fill(self.numbered(type(content[0], (), {})()), content[1])
        return self.immutable(kind, content)

    def immutable(self, kind: str, content: Any) -> Any:
        if kind in "tzgvn":
            return self.group(kind, content)
        if kind == "r":
            return self.objects[content]
        if kind == "i":
            return int(content, 16)
        if kind in "fDF":
            numbers: Any = {"f": float, "D": decimal.Decimal, "F": fractions.Fraction}
            return numbers[kind](content)
        if kind == "c":
            return complex(*map(float, content))
        if kind == "b":
            return bytes.fromhex(content)
        if kind == "N":
            return _FACTORIES[content]
        if kind == "e":
            return self.shared[content[0]][content[1]]
        if kind == "T":
            known = {one.__name__: one for one in (datetime.date, datetime.time, datetime.datetime)}
            name, value = content
            return datetime.timedelta(*value) if name == "timedelta" else known[name].fromisoformat(value)
        if kind == "y":
            items = [self.read(item) for item in content[0]]
            return self.iterate(items, content[1]) if self.iterate else iter(items)
        if self.handle is not None:
            return {"h": self.handle}[kind](content)
        if kind == "P":
            return self.shared[content]
        if kind == "B":
            return getattr(_HOMES[content[0]], content[1])
        raise KeyError(kind)

    def group(self, kind: str, content: Any) -> Any:
        if kind == "g":
            return range(*content)
        if kind == "n":
            return tuple.__new__(self.shared[content[0]], map(self.read, content[1]))
        if kind == "v":
            items = [self.read(item) for item in content[1]]
            if content[0] == "keys":
                return dict.fromkeys(items).keys()
            return dict(enumerate(items)).values() if content[0] == "values" else dict(items).items()
        return {"t": tuple, "z": frozenset}[kind](map(self.read, content))

    def numbered(self, value: Any) -> Any:
        self.objects.append(value)
        return value

    def fill(self, value: Any, content: Any) -> Any:
        """Replaces the content of a mutable value."""
        if isinstance(value, list):
            value[:] = [self.read(item) for item in content]
        elif isinstance(value, collections.deque):
            items = [self.read(item) for item in content[1]]
            value.clear()
            value.extend(items)
        elif isinstance(value, dict):
            if type(value) is collections.defaultdict:
                factory, content = content
                value.default_factory = _FACTORIES.get(factory)
            pairs = [(self.read(key), self.read(item)) for key, item in content]
            value.clear()
            for key, item in pairs:
                value[key] = item
        elif isinstance(value, set):
            items = [self.read(item) for item in content]
            value.clear()
            value.update(items)
        elif isinstance(value, bytearray):
            value[:] = bytes.fromhex(content)
        else:
            state = {key: self.read(item) for key, item in content}
            for key in state_of(value).keys() - state.keys():
                object.__delattr__(value, key)
            for key, item in state.items():
                object.__setattr__(value, key, item)
        return value


def state_of(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object."""
    state = dict(getattr(value, "__dict__", {}))
    for known in type(value).__mro__:
        slots = known.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(value, slot):
                state[slot] = getattr(value, slot)
    return state


def is_record(value: Any) -> bool:
    """Whether an object has attributes only: no methods but those that create and print it."""
    usual = {"__init__", "__new__", "__repr__", "__str__"}
    if isinstance(value, type) or callable(value) or type(value).__mro__[1:] != (object,):
        return False
    methods = {
        name for name, item in vars(type(value)).items() if callable(item) or isinstance(item, property)
    }
    return hasattr(value, "__dict__") and methods <= usual


def raised(error: BaseException, writer: Writer) -> dict[str, Any]:
    """Writes an exception as {"raised": [names of its classes, the most derived first; its arguments]}."""
    names = [known.__name__ for known in type(error).__mro__ if known is not object]
    try:
        arguments = [writer.write(item) for item in error.args]
    except Exception:
        arguments = []
    return {"raised": [names, arguments]}


def error_of(content: Any, shared: dict[str, Any], reader: Reader) -> BaseException:
    """Builds the exception, of the most derived class that both sides know."""
    names, arguments = content
    for name in names:
        known = shared.get(name, getattr(builtins, name, None))
        if isinstance(known, type) and issubclass(known, BaseException):
            return known.__new__(known, *map(reader.read, arguments))
    return RuntimeError()


OPERATIONS: dict[str, Any] = {"len": len, "item": operator.getitem, "str": str, "iter": iter}


def done(
    operation: Any, entry_point: Any, handles: list[Any], shared: dict[str, Any], room: int
) -> dict[str, Any]:
    """Runs in the submission's cell: does one operation. Returns {"value", "changed"}: the result, and the numbered
    arguments that have changed."""
    kind, number, name, written = operation
    target = entry_point if number is None else handles[number]
    reader = Reader(shared)
    args, kwargs = reader.read(written)
    arguments = reader.objects
    before = [json.dumps(Writer(shared, arguments, []).content(value)) for value in arguments]
    writer = Writer(shared, arguments, handles, room)
    try:
        if kind == "get":
            value = getattr(target, name)
        elif kind == "call":
            value = (getattr(target, name) if name else target)(*args, **kwargs)
        else:
            value = OPERATIONS[kind](target, *args)
    except BaseException as error:
        return raised(error, writer)
    reply = {"value": writer.write(value)}
    now = [json.dumps(Writer(shared, arguments, []).content(value)) for value in arguments]
    changed = [number for number in range(len(now)) if now[number] != before[number]]
    if changed:
        reply["changed"] = [[number, writer.content(arguments[number])] for number in changed]
    return reply


def answers(sessions: Any, entry_point: Any, shared: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Runs in the submission's cell: returns a list of replies for each session. Handles belong to one session."""
    said = []
    for session in sessions:
        handles: list[Any] = []
        replies = []
        for operation in session["ops"]:
            try:
                reply = done(operation, entry_point, handles, shared, session["room"])
                json.dumps(reply)
            except Exception:
                reply = {"broken": True}
            replies.append(reply)
        said.append(replies)
    return said
