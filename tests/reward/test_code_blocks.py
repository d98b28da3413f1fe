"""Tests of which text of a response is code, and which of several blocks is the likeliest program."""

import pytest

from reward.graders.code.blocks import Block, by_preference, code_blocks


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        ("```python\na\n```", ["a\n"]),
        ("```\na\n```\n```py\nb\n```", ["a\n", "b\n"]),
        ("```python\na\n", ["a\n"]),
        ("```python\na\n```\nand ```b```", ["a\n"]),
        ("use ```b```\nthen\n```\ncode\n```", ["code\n"]),
        ("~~~python\na\n~~~", ["a\n"]),
        ("~~~python\na = ~~~1\n```\n~~~", ["a = ~~~1\n```\n"]),
        ("````\n```\na\n```\n````", ["```\na\n```\n"]),
        ("print(1)", []),
        ("```python\n \n```", []),
        ("1. So:\n   ```python\n   if a:\n       b\n   ```", ["if a:\n    b\n"]),
        ("1. ```python\n   if a:\n       b\n   ```", ["if a:\n    b\n"]),
        ("```python\r\na\r\n```\r\n", ["a\r\n"]),
        ("Here it is: ```python\na\n```", ["a\n"]),
        ("Here it is: ```\na\n```", ["a\n"]),
        ("It ends with ```done\n```python\na\n```", ["a\n"]),
        ("```python\na```", ["a"]),
        ("```python\na```\nDone.\n```text\n4\n```", ["a", "4\n"]),
        ("```python\na\n``` prints 4\n```text\n4\n```", ["a\n", "4\n"]),
        ("```python\na\n```text\n4\n```", ["a\n", "4\n"]),
        ("```python\nold\nNow better:\n```python\nnew\n```", ["old\nNow better:\n", "new\n"]),
        ("````markdown\nHi\n```python\na\n```\n````", ["Hi\n", "a\n"]),
        ("```python\nprint('```')\n```\n", ["print('```')\n"]),
        ("```python\n'''\n```\nf(1)\n```\n'''\na\n```\nDone", ["'''\n```\nf(1)\n```\n'''\na\n"]),
        ("```python\n# ```\n# f(1)\n# ```\na\n```", ["# ```\n# f(1)\n# ```\na\n"]),
        ("```text\nIt's ``` here\n```", ["It's ``` here\n"]),
        ('Here ```python title="a.py"\na\n```', ["a\n"]),
        ("Here ```{.python .numberLines}\na\n```", ["a\n"]),
        ("Here ```done and so on\n```python\na\n```", ["a\n"]),
        ("Write ```python a``` in a line.\n```python\na\n```", ["a\n"]),
        ('```\nIn """\n```\n```python\na\n```\nb', ['In """\n```\n', "a\n"]),
        ("```\nIn ''' \\\n```\n```Python 3\na\n```\nb", ["In ''' \\\n```\n", "a\n"]),
        ('```\nIn """\n```\n```python\n"""doc"""\na\n```\nb', ['In """\n```\n', '"""doc"""\na\n']),
        ('```\n"""\n```python\nf(1)\n```\n"""\na\n```\nb', ['"""\n```python\nf(1)\n```\n"""\na\n']),
        ('```python\n"""\n```\n```python\na\n```\nb', ['"""\n```\n```python\na\n```\nb']),
    ],
)
def test_blocks(text: str, bodies: list[str]) -> None:
    assert [block.body for block in code_blocks(text)] == bodies


@pytest.mark.parametrize(
    "label",
    ["python", "py", "Python", "python3", "Python 3.11", "py3", "pypy3", "{.python}", "{.python .numberLines}",
     'python title="a.py"', "python:a.py"],
)  # fmt: skip
def test_labels_that_name_python(label: str) -> None:
    assert [block.is_python for block in code_blocks(f"```{label}\na\n```")] == [True]
    assert [block.is_python for block in code_blocks(f"~~~ {label}\na\n~~~")] == [True]


@pytest.mark.parametrize(
    "label", ["", "text", "python-repl", "pycon", "pytest", "bash", "cpp", "json", "output"]
)
def test_labels_that_do_not(label: str) -> None:
    assert [block.is_python for block in code_blocks(f"```{label}\na\n```")] == [False]


def test_python_before_no_label_before_another_then_closed_then_late() -> None:
    blocks = [
        Block(label, "", is_closed)
        for label, is_closed in [
            ("text", True),
            ("py", False),
            ("", True),
            ("python", True),
            ("python", True),
        ]
    ]
    assert by_preference(blocks) == [4, 3, 1, 2, 0]
