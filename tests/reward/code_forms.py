"""A response and a task for each form of data/code_forms.jsonl, which tests/reward/test_code_forms.py grades."""

from __future__ import annotations

from typing import Any

ADDS = "a, b = map(int, input().split())\nprint(a + b)\n"
STDIN: dict[str, Any] = {"inputs": ["1 2", "3 4"], "outputs": ["3", "7"]}
F: dict[str, Any] = {"inputs": ["1\n2", "3\n4"], "outputs": ["3", "7"], "fn_name": "add"}
ADD = "def add(a, b):\n    return a + b\n"
PY = f"```python\n{ADDS}```\n"
WRONG = "```python\nprint(input())\n```\n"
FN = f"```python\n{ADD}```\n"

BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "prose behind the program": (f"{PY}It adds two numbers.", STDIN),
    "a `text` block with the output behind the program": (f"{PY}It prints\n```text\n3\n```", STDIN),
    "an `output` block": (f"{PY}```output\n3\n```", STDIN),
    "a `bash` block with the command": (f"{PY}Run it:\n```bash\necho 1 2 | python3 add.py\n```", STDIN),
    "a `json` block": (f'{PY}```json\n{{"sum": 3}}\n```', STDIN),
    "the output in a block without a label": (f"{PY}Output:\n```\n3\n```", STDIN),
    "program and output without labels": (f"```\n{ADDS}```\nOutput:\n```\n3\n```", STDIN),
    "an example call behind a function": (f"{FN}Usage:\n```python\nprint(add(1, 2))\n```", F),
    "an example call without a label": (f"{FN}Usage:\n```\nadd(1, 2)\n```", F),
    "an example call behind `class Solution`": (
        "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```\n"
        "```python\nprint(Solution().add(1, 2))\n```",
        F,
    ),
    "an example that imports the function": (
        f"{FN}Usage:\n```python\nfrom solution import add\nprint(add(1, 2))\n```", F
    ),
    "an example that gives the method of `class Solution` a name": (
        "```python\nclass Solution:\n    def add(self, a, b):\n        return a + b\n```\n"
        "```python\nadd = Solution().add\nprint(add(1, 2))\n```",
        F,
    ),
    "a test behind the program that opens a file": (
        f"{PY}Test it:\n```python\nimport subprocess\nsubprocess.run(['python', 'add.py'], stdin=open('1.txt'))\n```",
        STDIN,
    ),
    "a sketch before the program": (f"```python\nimport sys\n```\nIn full:\n{PY}", STDIN),
    "a wrong draft, then the right program": (f"```python\nprint(input())\n```\nBetter:\n{PY}", STDIN),
    "the right program, then a wrong one": (f"{PY}Or:\n```python\nprint(input())\n```", STDIN),
    "the right program without a label, then a wrong one": (f"```\n{ADDS}```\n```\nprint(input())\n```", STDIN),
    "a wrong program, then the right one labelled `text`": (f"{WRONG}```text\n{ADDS}```", STDIN),
    "the right program, then one that is broken": (f"{PY}Or:\n```python\nprint(input(\n```", STDIN),
    "opening fence behind text": (f"Here is the code: {PY}", STDIN),
    "opening fence behind text, without a label": (f"Here is the code: ```\n{ADDS}```", STDIN),
    "closing fence on the last code line": (f"```python\n{ADDS.rstrip()}```", STDIN),
    "the same with text behind it": (f"```python\n{ADDS.rstrip()}``` That is all.\n```text\n3\n```", STDIN),
    "no closing fence": (f"```python\n{ADDS}", STDIN),
    "no closing fence behind a closed sample": (f"```text\n3\n```\n```python\n{ADDS}", STDIN),
    "a new block before the old one is closed": (f"```python\nprint(input())\nBetter:\n{PY}", STDIN),
    "label `py`": (f"```py\n{ADDS}```\n```text\n3\n```", STDIN),
    "label `Python`": (f"```Python\n{ADDS}```\n```text\n3\n```", STDIN),
    "label `python3`": (f"```python3\n{ADDS}```\n```text\n3\n```", STDIN),
    "label `{.python}`": (f"```{{.python}}\n{ADDS}```\n```text\n3\n```", STDIN),
    'label `python title="add.py"`': (f'```python title="add.py"\n{ADDS}```\n```text\n3\n```', STDIN),
    "tildes": (f"~~~python\n{ADDS}~~~\n~~~text\n3\n~~~", STDIN),
    "a fence and code in a list item": (
        "1. ```python\n   n = input()\n   print(n)\n   ```", {"inputs": ["1"], "outputs": ["1"]}
    ),
    "a fence in a string": (f"```python\ns = '```'\n{ADDS}```\n", STDIN),
    "fences in a docstring": (f'```python\n"""Example:\n```\n1 2\n```\n"""\n{ADDS}```\n', STDIN),
    "markdown around it all": (f"````markdown\n# Solution\n{PY}````", STDIN),
    "no fence at all": (ADDS, STDIN),
}  # fmt: skip
OUTPUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "an output of 1.2 MB": (
        '```python\nprint("1 " * 600_000)\n```',
        {"inputs": ["1"], "outputs": ["1 " * 600_000]},
    ),
    "an output of 1.2 MB where 1 byte is expected": (
        '```python\nprint("1 " * 600_000)\n```',
        {"inputs": ["1"], "outputs": ["1"]},
    ),
    "70 outputs of 1.0 MB": (
        '```python\nprint("1" * 1_000_000)\n```',
        {"inputs": ["1"] * 70, "outputs": ["1" * 1_000_000] * 70},
    ),
    "70 outputs of 1.0 MB where 1 byte is expected": (
        '```python\nprint("1" * 1_000_000)\n```',
        {"inputs": ["1"] * 70, "outputs": ["1"] * 70},
    ),
    "a result of 1.2 MB": (
        "```python\ndef f(n):\n    return [1] * n\n```",
        {"inputs": ["400000"], "outputs": [[1] * 400_000], "fn_name": "f"},
    ),
}
_TEXT = {"inputs": ['"ab"', '"12"'], "fn_name": "f"}
_SAME = "```python\ndef f(x):\n    return x\n```"
_LITERALS = {"inputs": ["1", "2"], "outputs": ["True", "(1, 2)"], "fn_name": "f"}
RESULTS: dict[str, tuple[str, dict[str, Any]]] = {
    'text returned where the outputs are `"\\"ab\\""`, `"\\"12\\""`': (
        _SAME, {**_TEXT, "outputs": ['"ab"', '"12"']}
    ),
    'the same where they are `["ab"]`, `["12"]`': (_SAME, {**_TEXT, "outputs": [["ab"], ["12"]]}),
    'the same where they are `"ab"`, `"12"`': (_SAME, {**_TEXT, "outputs": ["ab", "12"]}),
    'numbers returned where the outputs are `"1"`, `"12"`': (
        _SAME, {"inputs": ["1", "12"], "outputs": ["1", "12"], "fn_name": "f"}
    ),
    'text returned where they are `"1"`, `"12"`': (
        _SAME, {"inputs": ['"1"', '"12"'], "outputs": ["1", "12"], "fn_name": "f"}
    ),
    'numbers returned where they are `"True"`, `"12"`': (
        _SAME, {"inputs": ["1", "12"], "outputs": ["True", "12"], "fn_name": "f"}
    ),
    'a truth value and a tuple returned where they are `"True"`, `"(1, 2)"`': (
        "```python\ndef f(x):\n    return True if x == 1 else (1, x)\n```", _LITERALS
    ),
    'their text returned where they are `"True"`, `"(1, 2)"`': (
        "```python\ndef f(x):\n    return 'True' if x == 1 else '(1, 2)'\n```", _LITERALS
    ),
}  # fmt: skip


def _checked(source: str, checks: str, preamble: str = "", **more: Any) -> tuple[str, dict[str, Any]]:
    """Returns a submission and a task whose test program runs `checks` in `check(candidate)`."""
    body = "".join(f"    {line}\n" for line in checks.splitlines())
    task = {
        "test_program": f"def check(candidate):\n{body}",
        "entry_point": "f",
        "preamble": preamble,
        **more,
    }
    return f"```python\n{source}\n```", task


_NODE = "class Node:\n    def __init__(self, val, next=None):\n        self.val, self.next = val, next\n"
_NODES = (
    f"{_NODE}    def values(self):\n        return [self.val] + (self.next.values() if self.next else [])\n"
)
_KINDS = """from collections import *
from datetime import *
from decimal import Decimal
from enum import Enum
from fractions import Fraction
Point = namedtuple("Point", "x y")
class Color(Enum):
    RED = 1
"""
_STACK = """class f:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    @property
    def top(self): return self.items[-1]
"""
TEST_PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "a list sorted in place": _checked("def f(a): a.sort()", "a = [3, 1, 2]\ncandidate(a)\nassert a == [1, 2, 3]"),
    "a matrix changed in place": _checked(
        "def f(m):\n    for row in m: row.reverse()",
        "m = [[1, 2], [3, 4]]\nrow = m[0]\nassert candidate(m) is None\n"
        "assert m == [[2, 1], [4, 3]] and row == [2, 1]",
    ),
    "a dict, a set, a bytearray and a deque changed in place": _checked(
        "def f(d, s, b, q):\n    d['b'] = 2; s.add(2); b.append(2); q.appendleft(2)",
        "from collections import deque\nd, s, b, q = {'a': 1}, {1}, bytearray(b'a'), deque([1], 3)\n"
        "candidate(d, s, b, q)\n"
        "assert (d, s, b, q) == ({'a': 1, 'b': 2}, {1, 2}, bytearray(b'a\\x02'), deque([2, 1]))\nassert q.maxlen == 3",
    ),
    "an argument changed and a number returned": _checked(
        "def f(a):\n    a[:] = sorted(set(a))\n    return len(a)",
        "a = [1, 1, 2]\nassert candidate(a) == 2\nassert a == [1, 2]",
    ),
    'the same with `"changes_arguments": true`': _checked(
        "def f(a):\n    a[:] = sorted(set(a))\n    return len(a)",
        "a = [1, 1, 2]\nassert candidate(a) == 2\nassert a == [1, 2]",
        changes_arguments=True,
    ),
    "an argument emptied, so that the test's own sum is 0": _checked(
        "def f(a):\n    a.clear()\n    return 0", "a = [1, 2]\nassert candidate(a) == sum(a)"
    ),
    "an argument emptied and returned": _checked(
        "def f(a):\n    a.clear()\n    return a", "a = [2, 1]\nassert candidate(a) == sorted(a)"
    ),
    "an argument sorted and returned": _checked(
        "def f(a):\n    a.sort()\n    return a", "assert candidate([2, 1]) == [1, 2]"
    ),
    "one list as two arguments": _checked(
        "def f(a, b):\n    a.append(1)", "a = []\ncandidate(a, a)\nassert a == [1]\na, b = [], []\n"
        "candidate(a, b)\nassert (a, b) == ([1], [])"
    ),
    "the argument itself, or a copy": _checked(
        "def f(a, new):\n    return list(a) if new else a",
        "a = [1]\nassert candidate(a, False) is a\nassert candidate(a, True) == a\nassert candidate(a, True) is not a",
    ),
    "an object without methods as argument": (
        "```python\ndef f(n): return n.val\n```",
        {"test_program": f"{_NODE}def check(candidate):\n    assert candidate(Node(3)) == 3", "entry_point": "f"},
    ),
    "an object with methods as argument": (
        "```python\ndef f(n): return n.values()\n```",
        {"test_program": f"{_NODES}def check(candidate):\n    assert candidate(Node(3)) == [3]", "entry_point": "f"},
    ),
    "the same, its class in the preamble": _checked(
        "def f(n): return n.values()", "assert candidate(Node(3, Node(4))) == [3, 4]", _NODES
    ),
    "a linked list returned": _checked(
        "def f(values):\n    return Node(values[0], f(values[1:])) if values else None",
        "assert candidate([1, 2, 3]).values() == [1, 2, 3]\nassert candidate([]) is None", _NODES
    ),
    "the same, its class written again by the submission": _checked(
        f"{_NODES}def f(values):\n    return Node(values[0], f(values[1:])) if values else None",
        "assert candidate([1, 2, 3]).values() == [1, 2, 3]", _NODES
    ),
    "a linked list reversed in place, with a cycle": _checked(
        "def f(n):\n    n.next.next = n\n    n.val = 5",
        "n = Node(1, Node(2))\ncandidate(n)\nassert n.val == 5 and n.next.next is n", _NODES
    ),
    "a function as argument": _checked("def f(g): return g(2)", "assert candidate(lambda x: x + 1) == 3"),
    "a known function as argument": _checked(
        "def f(g): return g([3, 4])", "assert candidate(len) == 2 and candidate(add_up) == 7",
        "def add_up(values):\n    return sum(values)\n",
    ),
    "a generator": _checked(
        "def f(n):\n    yield from range(n)",
        "assert list(candidate(3)) == [0, 1, 2]\ng = candidate(2)\nassert next(g) == 0 and next(g) == 1\n"
        "assert next(g, None) is None",
    ),
    "a generator that never ends": _checked(
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 1",
        "from itertools import islice\nassert list(islice(candidate(), 5_000)) == list(range(5_000))",
    ),
    "a generator that never ends where it should": _checked(
        "import itertools\ndef f(): return itertools.count()", "assert list(candidate()) == [0, 1, 2]"
    ),
    "a generator that fails": _checked(
        "def f():\n    yield 1\n    raise ValueError('no')",
        "g = candidate()\nassert next(g) == 1\ntry:\n    next(g)\nexcept ValueError as e:\n"
        "    assert str(e) == 'no'\n    return\nassert False",
    ),
    "`map`, `zip` and the views of a dict": _checked(
        "def f(d): return map(str, d), zip(d, d), d.keys(), d.values(), d.items()",
        "a, b, c, d, e = candidate({1: 2})\nassert list(a) == ['1'] and list(b) == [(1, 1)] and c == {1}\n"
        "assert list(d) == [2] and e == {(1, 2)} and c != [1]",
    ),
    "bytes, complex numbers, ranges, dates and the like": _checked(
        "def f(x): return x",
        "for x in (b'\\xff', bytearray(b'a'), 1 + 2j, range(1, 9, 2), frozenset({1}), {1}, Decimal('0.10'),\n"
        "          Fraction(1, 3), date(2024, 2, 29), datetime(2024, 1, 1, 5), timedelta(1, 2, 3), Counter('aab'),\n"
        "          OrderedDict([(2, 1), (1, 2)]), defaultdict(list, a=[1]), deque([1], 2), Point(1, 2), Color.RED,\n"
        "          10**5000, -0.0, float('-inf'), {(1, 2): {3: None}}, {'f': '1', 'r': 0}, [{'r': 0}, {'t': []}]):\n"
        "    y = candidate(x)\n    assert y == x and type(y) is type(x) and repr(y)[:99] == repr(x)[:99]",
        _KINDS + "import sys\nsys.set_int_max_str_digits(0)\n",
    ),
    "a type returned": _checked("def f(x): return type(x)", "assert candidate(3) is int"),
    "a function returned": _checked(
        "def f(n): return lambda x: x + n",
        "add = candidate(2)\nassert add(3) == 5 and add(4) == 6\nassert candidate(1)(1) == 2",
    ),
    "a function returned that counts its calls": _checked(
        "def f():\n    n = [0]\n    def g():\n        n[0] += 1\n        return n[0]\n    return g",
        "g, h = candidate(), candidate()\nassert [g(), g(), g()] == [1, 2, 3]\nassert h() == 1",
    ),
    "an object returned, its methods called": _checked(
        f"class Stack:{_STACK[8:]}def f(): return Stack()",
        "s = candidate()\nfor n in range(60):\n    s.push(n)\nassert len(s) == 60 and s.top == 59\n"
        "assert s.pop() == 59\nassert s.pop() == 58\nassert len(s) == 58",
    ),
    "a class asked for": _checked(
        _STACK, "s = candidate()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\ntry:\n    s.pop()\n    s.pop()\n"
        "except IndexError:\n    return\nassert False",
    ),
    "an exception of the preamble's": _checked(
        "def f(n): raise TooBig(n)", "try:\n    candidate(7)\nexcept TooBig as e:\n    assert e.args == (7,)\n"
        "    return\nassert False", "class TooBig(Exception):\n    pass\n",
    ),
    "a ValueError of the submission's own class": _checked(
        "class TooBig(ValueError): pass\ndef f(n): raise TooBig('no')",
        "try:\n    candidate(7)\nexcept ValueError as e:\n    assert str(e) == 'no'\n    return\nassert False",
    ),
    "another exception than the one asked for": _checked(
        "def f(n): raise KeyError", "try:\n    candidate(7)\nexcept ValueError:\n    return\nassert False"
    ),
    "an object of the submission's own where a TypeError is asked for": _checked(
        "class A: pass\ndef f(n): return A()", "try:\n    candidate(7)\nexcept TypeError:\n    return\nassert False"
    ),
    "an object that is equal to everything": _checked(
        "class A:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(n): return A()",
        "assert candidate(7) == 8",
    ),
    "an empty collection of the submission's own class, compared": _checked(
        "class A(list):\n    def __eq__(self, other): return True\n    def __len__(self): return 5\n"
        "def f(n): return A()", "assert candidate(7) == [1] and len(candidate(7)) == 5",
    ),
    "an object that claims to hold everything, asked `in`": _checked(
        "class A:\n    def __contains__(self, item): return True\ndef f(n): return A()", "assert 3 in candidate(7)"
    ),
    "an object that claims to hold nothing, asked `not in`": _checked(
        "class A:\n    def __contains__(self, item): return False\ndef f(n): return A()", "assert 3 not in candidate(7)"
    ),
    "a generator of the submission's, asked `in`": _checked(
        "def f(n): yield n", "assert 7 in candidate(7) and 8 not in candidate(7)"
    ),
    "`from __future__` beside a preamble": _checked(
        "from __future__ import annotations\ndef f(n: Unknown) -> int: return helper(n)",
        "assert candidate(7) == 8", "def helper(n):\n    return n + 1\n",
    ),
    "a test program that fails before any call": _checked("def f(n): return n", "assert undefined\ncandidate(1)"),
    "a test program that calls nothing": _checked("def f(n): return n", "pass"),
}  # fmt: skip
