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
