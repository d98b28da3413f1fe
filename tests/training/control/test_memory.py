"""Memory that grows until it is used up is found, and that of a healthy run never seems to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from nemo_prorl.training.control.memory import NUM_STEPS, WARM_UP, WINDOW, ProcessMemory
from nemo_prorl.training.control.series import LENGTH
from nemo_prorl.training.timing import HOST_FREE

LEAK = 5 / 1024
"""GiB a step."""


def healthy(seed: int, num_steps: int = 600) -> np.ndarray:
    """Returns a process of 2 to 8 GiB in each step: buffers fill, noise, validations and checkpoints that take memory
    for a few steps, and, by the seed, growth that slows down, a rise at once, or a walk that is drawn back."""
    random = np.random.default_rng(seed)
    level, t = 2 * 4 ** random.random(), np.arange(num_steps)
    gib = level * (0.7 + 0.3 * (1 - np.exp(-t / random.uniform(2, 25))))
    gib += level * random.normal(0, random.uniform(0.001, 0.005), num_steps)
    every, most = random.integers(10, 40), random.uniform(0.05, 0.5)
    gib += level * most * random.random(num_steps) * (t % every < random.integers(1, 4))
    if seed % 4 == 1:
        gib += level * 0.1 * (1 - np.exp(-t / random.uniform(60, 200)))
    if seed % 4 == 2:
        gib += level * 0.1 * (t > random.integers(num_steps))
    if seed % 4 == 3:
        walk = np.zeros(num_steps)
        for step in range(1, num_steps):
            walk[step] = 0.97 * walk[step - 1] + random.normal(0, 0.003 * level)
        gib += walk
    return gib


def judged(
    gib: np.ndarray, key: str = "host_memory/rank_gib", *, free: float = 16.0, **more: Any
) -> Iterator[tuple[int, str]]:
    """Yields step and sentence of each warning; `free` GiB were free in the first step."""
    memory = ProcessMemory()
    for index, value in enumerate(gib):
        lengths = more.get("lengths", [100.0] * len(gib))
        memory.observe(
            {key: value, HOST_FREE: free + gib[0] - value, NUM_STEPS: index + 1, LENGTH: lengths[index]}
        )
        is_fine, sentence = memory.lasts() or (True, "")
        if not is_fine:
            yield index + 1, sentence


@pytest.mark.medium
def test_none_of_30_healthy_runs_is_warned_of_and_each_with_a_leak_before_step_300() -> None:
    t = np.arange(600)
    for seed in range(30):
        assert [*judged(healthy(seed))] == [], seed
        step, sentence = next(judged(healthy(seed) + LEAK * t))
        assert step < 300, seed
        assert sentence.startswith("host_memory/rank_gib grows by "), seed


def test_the_warning_says_how_much_and_for_how_many_steps() -> None:
    gib = 2 + LEAK * np.arange(300)
    step, sentence = next(judged(gib, free=8.0))
    assert step == WARM_UP + WINDOW
    num_left = (8.0 - LEAK * (step - 1)) / LEAK
    assert f"grows by 5 MiB a step, and what is free lasts for {num_left:,.0f} more: pause" in sentence


def test_what_is_free_is_more_than_a_long_run_needs() -> None:
    assert [*judged(2 + LEAK * np.arange(300), free=100.0)] == []


def test_a_gpu_is_judged_by_its_growth() -> None:
    _, sentence = next(judged(40 + 4 * LEAK * np.arange(300), "memory/updates_gib"))
    assert (
        sentence == "memory/updates_gib grows by 20 MiB a step: pause before it is used up, and start again."
    )


def test_longer_responses_explain_growth_until_little_is_left() -> None:
    gib, lengths = 2 + LEAK * np.arange(600), np.linspace(100, 900, 600)
    assert [*judged(gib, lengths=lengths)] == []
    step, sentence = next(judged(gib, free=3.0, lengths=lengths))
    assert (step, sentence.split(" lasts ")[1][:12]) == (416, "for 199 more")


def test_another_process_begins_anew() -> None:
    memory, gib = ProcessMemory(), 2 + LEAK * np.arange(220)
    for value in (*enumerate(gib), *enumerate(gib)):
        memory.observe(
            {"host_memory/rank_gib": value[1], HOST_FREE: 4.0, NUM_STEPS: value[0] + 1, LENGTH: 1.0}
        )
        assert memory.lasts() == (True, "4 GiB are free on the fullest node.")


def test_nothing_is_said_of_what_is_not_recorded() -> None:
    memory = ProcessMemory()
    assert memory.lasts() is None
    memory.observe({LENGTH: 1.0})
    assert memory.lasts() is None
    memory.observe({LENGTH: 1.0, "memory/updates_gib": 40.0})
    assert memory.lasts() is None, "no host has 0 GiB left"
