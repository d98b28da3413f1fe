"""Tests of the mix of prompt files: endless, weighted in every window, each row once per epoch, and resumable at any
row."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_prorl.config import ConfigError
from nemo_prorl.data.mix import PromptMix, render
from nemo_prorl.types import Prompt
from tests.data.conftest import FRAME_TOKENS, CharacterTokenizer, WriteFile, make_row
from tests.training.conftest import make_group


def mix(
    weights: Mapping[str, float], *, seed: int = 1, max_prompt_tokens: int = 100, by_difficulty: bool = False
) -> PromptMix:
    mixed = PromptMix(weights, seed=seed, tokenizer=CharacterTokenizer(), max_prompt_tokens=max_prompt_tokens)
    mixed.by_difficulty = by_difficulty
    return mixed


def uids(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.uid for prompt in prompts]


def files(prompts: Sequence[Prompt]) -> list[str]:
    return [prompt.uid.split("/")[0] for prompt in prompts]


def test_every_row_comes_once_an_epoch_forever(write_file: WriteFile) -> None:
    prompts = mix({write_file("a", 7): 1.0}).take(7 * 5)
    epochs = [uids(prompts[start : start + 7]) for start in range(0, len(prompts), 7)]
    for number, epoch in enumerate(epochs):
        assert sorted(epoch) == [f"a/{row}#{number}" for row in range(7)]
    orders = {tuple(uid.split("#")[0] for uid in epoch) for epoch in epochs}
    assert len(orders) > 1, "an epoch is shuffled anew"


def test_the_order_is_the_seeds_and_the_contents_alone(write_file: WriteFile) -> None:
    a, same, other = write_file("a", 50), write_file("a", 50), write_file("b", 50)
    orders = {
        "a": [uid.split("/")[1] for uid in uids(mix({a: 1.0}).take(50))],
        "weight": [uid.split("/")[1] for uid in uids(mix({same: 7.0}).take(50))],
        "seed": [uid.split("/")[1] for uid in uids(mix({a: 1.0}, seed=2).take(50))],
        "content": [uid.split("/")[1] for uid in uids(mix({other: 1.0}).take(50))],
    }
    assert orders["a"] == orders["weight"]
    assert len({tuple(order) for order in orders.values()}) == 3


@pytest.mark.medium
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    weights=st.lists(st.floats(0.01, 100), min_size=2, max_size=4),
    size=st.integers(1, 60),
    data=st.data(),
)
def test_weights_hold_in_every_window(
    write_file: WriteFile, weights: list[float], size: int, data: st.DataObject
) -> None:
    """The error is at most a few prompts in any window, even if some prompts are too long to be used."""
    paths = [write_file(name, [1, 1, 90, 1, 1]) for name in "abcd"[: len(weights)]]
    start = data.draw(st.integers(0, 200))
    window = files(
        mix(dict(zip(paths, weights, strict=True)), max_prompt_tokens=50).take(start + size)[start:]
    )
    counts = Counter(window)
    for name, weight in zip("abcd", weights, strict=False):
        assert abs(counts[name] - size * weight / sum(weights)) <= len(weights)


def test_too_long_prompts_are_left_out_and_counted(write_file: WriteFile) -> None:
    lengths = [5, 40, 5, 41, 5]
    limit = 40 + FRAME_TOKENS
    mixed = mix({write_file("a", lengths): 1.0}, max_prompt_tokens=limit)
    assert sorted(uids(mixed.take(4))) == ["a/0#0", "a/1#0", "a/2#0", "a/4#0"]
    mixed.take(8)
    assert mixed.num_too_long in (2, 3), "one an epoch: two whole ones, and perhaps that of the third"


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1000.0, 1.0), (1.0, 1000.0)])
def test_a_file_of_nothing_but_too_long_prompts_is_one_sentence(
    write_file: WriteFile, weights: tuple[float, float]
) -> None:
    long, short = write_file("long", [90] * 4), write_file("short", 4)
    with pytest.raises(ConfigError, match=r"long\.parquet.*max_prompt_tokens=50") as caught:
        mix(dict(zip((long, short), weights, strict=True)), max_prompt_tokens=50).take(3000)
    assert "short.parquet" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_only_short_prompt_of_a_file_is_found_wherever_it_stands(write_file: WriteFile) -> None:
    """If it is first in one epoch and last in the next, nearly two epochs of too long prompts lie between."""
    mixed = mix({write_file("a", [90] * 7 + [1]): 1.0}, max_prompt_tokens=50)
    assert uids(mixed.take(30)) == [f"a/7#{epoch}" for epoch in range(30)]


def test_without_files_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"data\.train is empty"):
        mix({})


def test_two_files_with_the_same_problems_are_one_sentence(write_file: WriteFile) -> None:
    """Neither the saved state nor the verdicts of a step could tell them apart."""
    one = write_file("a", 3)
    two = shutil.copy(one, one.replace("a.parquet", "copy.parquet"))
    with pytest.raises(ConfigError, match="'a/0'"):
        mix({one: 1.0, two: 1.0})


@pytest.mark.medium
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=st.integers(0, 60), seed=st.integers(0, 5), by_difficulty=st.booleans(), data=st.data())
def test_a_resumed_mix_goes_on_at_the_very_row(
    write_file: WriteFile, before: int, seed: int, by_difficulty: bool, data: st.DataObject
) -> None:
    lengths = [*data.draw(st.lists(st.sampled_from([1, 90]), min_size=4, max_size=9)), 1]
    weights = {write_file("a", lengths): 3.0, write_file("b", 5): 1.0}
    first, resumed = (
        mix(weights, seed=seed, max_prompt_tokens=50, by_difficulty=by_difficulty) for _ in range(2)
    )
    taken = first.take(before)
    num_trained = data.draw(st.integers(0, before))
    for prompt in taken[:num_trained]:
        first.note([replace(make_group("any", [0.0, 1.0]), prompt=prompt)])
    first.give_back(taken[num_trained:])
    resumed.restore(json.loads(json.dumps(first.state())))
    assert resumed.take(30) == first.take(30)
    assert resumed.num_too_long == first.num_too_long
    assert resumed.state() == first.state()


def test_prompts_that_are_given_back_come_first_and_each_row_once_an_epoch(write_file: WriteFile) -> None:
    mixed = mix({write_file("a", 20): 1.0, write_file("b", 20): 1.0})
    first, ahead, more = (mixed.take(count) for count in (4, 6, 3))
    mixed.give_back(ahead)
    again = mixed.take(8)
    assert again[:6] == ahead
    mixed.give_back(again[2:])  # some of them a second time
    assert mixed.take(6) == again[2:]
    assert Counter(uids([*first, *more, *again, *mixed.take(25)])) == Counter(
        f"{file}/{row}#0" for file in "ab" for row in range(20)
    )


def test_a_prompt_that_was_given_back_is_left_out_where_it_no_longer_fits(write_file: WriteFile) -> None:
    """The next stage has other files, or a smaller limit."""
    a, b = write_file("a", [1, 30, 1, 30]), write_file("b", 4)
    before = mix({a: 1.0, b: 1.0})
    before.give_back(before.take(8))
    for weights, limit, left in (
        ({b: 1.0}, 100, "bbbb"),
        ({a: 1.0, b: 1.0}, 20, "aabbbb"),
        ({a: 1.0}, 20, "aa"),
    ):
        after = mix(weights, max_prompt_tokens=limit)
        after.restore(json.loads(json.dumps(before.state())))
        assert sorted(uid[0] for uid in uids(after.take(len(left)))) == list(left)
        assert after.state()["again"] == []


def test_no_prompt_comes_twice_in_a_step_if_its_file_has_changed(write_file: WriteFile) -> None:
    """The file begins anew, with names that prompts which were given back have already."""
    before = mix({write_file("a", 4): 1.0})
    before.give_back(before.take(3))
    after = mix({write_file("a", 5): 1.0})
    after.restore(json.loads(json.dumps(before.state())))
    assert sorted(uids(after.take(5))) == [f"a/{row}#0" for row in range(5)]


def test_the_state_follows_the_content_to_another_place(write_file: WriteFile, tmp_path: Path) -> None:
    a, b = write_file("a", 9), write_file("b", 9)
    first = mix({a: 1.0, b: 1.0})
    first.take(11)
    moved = [shutil.copy(path, tmp_path / f"moved_{Path(path).name}") for path in (a, b)]
    resumed = mix({str(moved[0]): 1.0, str(moved[1]): 1.0})
    assert resumed.restore(first.state()) == []
    assert uids(resumed.take(20)) == uids(first.take(20))


@pytest.mark.medium
def test_a_stage_with_another_mix_takes_the_new_weights_at_once(write_file: WriteFile) -> None:
    """A new file does not catch up, and an old one continues at its row."""
    old, new = write_file("old", 1000), write_file("new", 1000)
    before = mix({old: 1.0})
    seen = uids(before.take(600))
    after = mix({old: 0.75, new: 0.25})
    assert after.restore(before.state()) == [new]
    prompts = after.take(40)
    assert Counter(files(prompts)) == {"old": 30, "new": 10}
    assert not set(uids(prompts)) & set(seen)
    changed = mix({old: 0.25, new: 0.75})
    changed.restore(after.state())
    assert Counter(files(changed.take(40))) == {"old": 10, "new": 30}
    write_file("old", 1001)
    assert mix({old: 0.25, new: 0.75}).restore(changed.state()) == [old], "it has another row"


def test_a_file_that_a_stage_leaves_out_goes_on_in_the_next_one(write_file: WriteFile) -> None:
    a, b = write_file("a", 9), write_file("b", 9)
    first, between, later = mix({a: 1.0}), mix({b: 1.0}), mix({a: 1.0, b: 1.0})
    first.note([replace(make_group("any", [0.0, 1.0]), prompt=prompt) for prompt in first.take(5)])
    assert between.restore(json.loads(json.dumps(first.state()))) == [b]
    between.take(3)
    assert later.restore(json.loads(json.dumps(between.state()))) == []
    assert sorted(later.state()["read"].values()) == [3, 5]
    known = [history["spreads"] for history in later.state()["histories"].values()]
    assert sorted(known, key=len) == [[None] * 3, [0.5] * 5]
    assert [uid for uid in uids(later.take(8)) if uid[0] == "a"] == uids(first.take(4))


@pytest.mark.parametrize(
    ("scores", "spread"), [([-1.0, 1.0], 1.0), ([0.0, 1.0], 0.5), ([0.5, 0.5], 0.0), ([None, 1.0], None)]
)
def test_a_row_is_known_by_the_spread_of_its_scores_before_shaping(
    write_file: WriteFile, scores: list[float | None], spread: float | None
) -> None:
    mixed = mix({write_file("a", 1): 1.0})
    (prompt,) = mixed.take(1)
    group = make_group("any", scores)
    punished = replace(group.members[0], reward=-7.0)
    mixed.note([replace(group, prompt=prompt, members=(punished, *group.members[1:]))])
    (history,) = mixed.state()["histories"].values()
    assert history["spreads"] == [spread]


def test_prompts_are_rendered_by_the_chat_template(tokenizer: CharacterTokenizer) -> None:
    row = make_row(
        "a",
        messages=({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}),
        task={"answer": "4"},
    )
    prompt = render(row, tokenizer, visit=3)
    assert prompt.text == "<s>Be brief.<u>2+2?<a>"
    assert "".join(map(chr, prompt.token_ids)) == prompt.text
    assert (prompt.uid, prompt.domain, prompt.source, prompt.task) == ("a#3", "math", "test", {"answer": "4"})
