import pytest

from reward.extract import answer_tag, boxes, joined_boxes, last_box


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{1} \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {3}", "3"),
        ("\\fbox{4}", "4"),
        ("\\boxed{\\boxed{5}}", "5"),
        ("\\boxed{6} and then \\boxed{7", "6"),
        ("\\boxed 8", None),
        ("\\boxed{", None),
        ("\\boxed{185\\}", "185\\"),
        ("none", None),
    ],
)
def test_last_box(text: str, box: str | None) -> None:
    assert last_box(text) == box


def test_many_unbalanced_boxes_take_no_quadratic_time() -> None:
    assert boxes("\\boxed{" * 40_000) == []


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("\\boxed{1} and \\boxed{2}", ["1", "2"]),
        ("\\boxed{1}, \\boxed{2}", ["1", "2"]),
        (f"\\boxed{{1}}{'x' * 60},{'y' * 60}\\boxed{{2}}", ["1", "2"]),
        (f"\\boxed{{1}}{'x' * 61},\\boxed{{2}}", ["2"]),
        (f"\\boxed{{1}}{' ' * 300}\n{' ' * 300}\\boxed{{2}}", ["1", "2"]),
        ("\\boxed{1} and\n\n\\boxed{2}", ["2"]),
        ("\\boxed{9}\n\n\\boxed{1} papers and \\boxed{2} bins", ["1", "2"]),
        (
            "\\boxed{3}. No, wait, that is wrong in several ways that I explain at length now: \\boxed{4}",
            ["4"],
        ),
    ],
)
def test_boxes_that_belong_together(text: str, run: list[str]) -> None:
    assert joined_boxes(text) == run


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> <answer> 2 </answer>", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>", None),
        ("</answer>", None),
        ("2", None),
    ],
)
def test_answer_tag(text: str, answer: str | None) -> None:
    assert answer_tag(text) == answer
