import pytest

from reward.extract import answer_tag, boxes, is_open_thought, joined_boxes, last_box, visible_text


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


def test_reasoning_is_not_part_of_the_answer() -> None:
    assert visible_text("<think>a</think>b</think>c") == "c"
    assert visible_text("<think>a</think>\n\n  c\n") == "  c\n"
    assert visible_text("\n\nc") == "\n\nc"
    assert is_open_thought("<think>a")
    assert is_open_thought("<think>a</think>b<think>c")
    assert not is_open_thought("<think>a</think>b")
