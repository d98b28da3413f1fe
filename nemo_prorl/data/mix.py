"""An endless, weighted, seeded mix of prompts from prompt files that resumes at the very next row."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from jinja2 import TemplateError

from nemo_prorl.config import ConfigError
from nemo_prorl.data.difficulty import RowHistory
from nemo_prorl.data.rows import FileContent, Row, RowFile, check_distinct, read_content, split_answer
from nemo_prorl.types import Prompt, RolloutGroup
from reward.extract import THINK_START, is_open_thought

T = TypeVar("T")


class Tokenizer(Protocol):
    """The two methods of a Hugging Face tokenizer that prompts need."""

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...


def render(row: Row, tokenizer: Tokenizer, *, visit: int = 0) -> Prompt:
    """Renders the row with the model's chat template, ready for the assistant's turn, and appends the answer that the
    row begins. Raises ConfigError when the template refuses the messages, as some do with a system turn.

    The template never sees that answer. It would drop or add a thought (DeepSeek-R1-Distill, Qwen3) or trim it (Llama
    3), and the policy, which samples after the generation prompt, has written none of its answers so."""
    asked, begun = split_answer(row.messages)
    messages = [dict(message) for message in asked]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise ConfigError(
            f"the model's chat template cannot render {row.uid} ({' '.join(str(error).split())}): correct the "
            "template, or the row's messages."
        ) from None
    opens_thought = THINK_START in text and _opens_thought(messages, text, tokenizer)
    if opens_thought:  # which an answer that was written for another template repeats
        begun = begun.removeprefix(text[text.rindex(THINK_START) :]).removeprefix(THINK_START)
    # Apart, because no token that the policy writes spans the end of the generation prompt.
    token_ids = [part for each in (text, begun) for part in tokenizer.encode(each, add_special_tokens=False)]
    return Prompt(
        uid=f"{row.uid}#{visit}",
        domain=row.domain,
        source=row.source,
        text=text,
        token_ids=tuple(token_ids),
        task=row.task,
        opens_thought=opens_thought,
        begun=begun,
        columns=row.columns,
    )


def _opens_thought(messages: Sequence[Mapping[str, str]], text: str, tokenizer: Tokenizer) -> bool:
    """Returns whether the template begins the assistant's turn with a thought and leaves it open. What the messages say
    of <think> does not count."""
    asked = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    if text.startswith(asked) and text != asked:
        # What the template adds for the assistant; with Qwen3 and enable_thinking=False that is
        # `<think>\n\n</think>\n\n`, which is closed.
        return is_open_thought(text.removeprefix(asked))
    # It begins the assistant's turn unasked, or not at all (Mistral), or ends a conversation otherwise (Phi-4-mini).
    without = [{**message, "content": "?"} for message in messages]
    return is_open_thought(tokenizer.apply_chat_template(without, tokenize=False, add_generation_prompt=True))


class PromptMix:
    """Takes prompts from each file in proportion to its weight: each row once an epoch, in an order of its own, or from
    the second epoch on by difficulty.

    The order of an epoch is a function of the seed and the file's content alone. A draw by difficulty is one of these,
    of its number, and of what the run knows of the rows (RowHistory), which is the same on every rank.
    """

    def __init__(
        self,
        weights: Mapping[str, float],
        *,
        seed: int,
        tokenizer: Tokenizer,
        max_prompt_tokens: int,
        with_extra: bool = False,
        contents: Mapping[str, FileContent] | None = None,
    ) -> None:
        """with_extra: prompts also carry the files' further columns. contents: of every file, if they have been read
        before (`read_content`); a file of another size raises ConfigError."""
        if not weights:
            raise ConfigError(
                "data.train is empty: name at least one prompt file, such as data.train={a.parquet: 1}."
            )
        self._files = {path: RowFile(Path(path), with_extra=with_extra) for path in weights}
        check_distinct(list(self._files.values()))
        contents = contents or {path: read_content(Path(path)) for path in weights}
        for path in weights:
            if Path(path).stat().st_size != contents[path].num_bytes:
                raise ConfigError(
                    f"data file {path} has another size on {socket.gethostname()} than where the main rank runs: "
                    "copy the same file to every machine, or write a path on a shared file system."
                )
        self._fingerprints = {path: contents[path].sha256 for path in weights}
        total = sum(weights.values())
        self._shares = {path: weight / total for path, weight in weights.items()}
        self._read = dict.fromkeys(weights, 0)
        self._given = dict.fromkeys(weights, 0)
        self._seed = seed
        self._tokenizer = tokenizer
        self._max_prompt_tokens = max_prompt_tokens
        self._orders: dict[str, tuple[int, np.ndarray]] = {}
        self._histories = {path: RowHistory(len(file)) for path, file in self._files.items()}
        self.by_difficulty = False
        """Whether draws from now on follow the rows' difficulty once a file's first epoch is over."""
        self._read_before: dict[str, int] = {}
        self._histories_before: dict[str, Any] = {}
        """With what `restore` was given of files that this mix does not have, which a later one may have again."""
        self._sampled: dict[str, tuple[str, int]] = {}
        """Uid -> (path, row) of each prompt that was taken and not yet noted."""
        self._again: list[Prompt] = []
        """Prompts that were given back; they come before all others."""
        self.num_too_long = 0
        """Prompts left out so far because they exceed max_prompt_tokens."""

    def take(self, count: int) -> list[Prompt]:
        """Returns the next `count` prompts; the same on every rank that asks in the same order."""
        again, self._again = self._again[:count], self._again[count:]
        return [*again, *(self._next() for _ in range(count - len(again)))]

    def give_back(self, prompts: Sequence[Prompt]) -> None:
        """Takes back prompts that nobody has trained on. `take` returns them first, in this order."""
        self._again = [*prompts, *self._again]

    def note(self, groups: Sequence[RolloutGroup]) -> None:
        """Notes how much prompts teach that have been sampled: the spread of each one's scores, before shaping."""
        for group in groups:
            path, row = self._sampled.pop(group.prompt.uid)
            scores = [member.verdict.score or 0.0 for member in group.members]
            self._histories[path].note(row, float(np.std(scores)) if len(scores) > 1 else None)

    def state(self) -> dict[str, Any]:
        """Returns the position as JSON-serialisable data, keyed by the content of the files."""
        again = [(prompt.uid, *self._sampled[prompt.uid]) for prompt in self._again]
        return {
            "shares": self._by_content(self._shares),
            "read": self._read_before | self._by_content(self._read),
            "given": self._by_content(self._given),
            "histories": self._histories_before
            | {key: history.state() for key, history in self._by_content(self._histories).items()},
            "max_prompt_tokens": self._max_prompt_tokens,
            "num_too_long": self.num_too_long,
            "again": [
                [self._fingerprints[path], row, int(uid.rpartition("#")[2])] for uid, path, row in again
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> list[str]:
        """Continues from `state`; a file that is new in the mix, or has changed, starts at its beginning. Returns the
        names of these. New weights hold from now on: the mix does not catch up on a new file."""
        same_mix = state["shares"] == self._by_content(self._shares)
        self._read_before, self._histories_before = state["read"], state.get("histories", {})
        for path, fingerprint in self._fingerprints.items():
            self._read[path] = int(state["read"].get(fingerprint, 0))
            self._given[path] = int(state["given"][fingerprint]) if same_mix else 0
            self._histories[path] = RowHistory(len(self._files[path]))
            if history := state.get("histories", {}).get(fingerprint):
                is_same_limit = state["max_prompt_tokens"] == self._max_prompt_tokens
                self._histories[path].restore(history if is_same_limit else {**history, "too_long": []})
        self.num_too_long = int(state["num_too_long"])
        known = [path for path, fingerprint in self._fingerprints.items() if fingerprint in state["read"]]
        # The prompts that were given back, without those that the mix no longer has or that are too long now.
        self._sampled, self._again = {}, []
        paths = {fingerprint: path for path, fingerprint in self._fingerprints.items()}
        for fingerprint, row, visit in state["again"]:
            if fingerprint not in paths:
                continue
            path = paths[fingerprint]
            prompt = render(self._files[path][row], self._tokenizer, visit=visit)
            if len(prompt.token_ids) <= self._max_prompt_tokens:
                self._histories[path].take_out(row)
                self._sampled[prompt.uid] = (path, row)
                self._again.append(prompt)
        return [file.name for path, file in self._files.items() if path not in known]

    def _by_content(self, values: Mapping[str, T]) -> dict[str, T]:
        return {fingerprint: values[path] for path, fingerprint in self._fingerprints.items()}

    def _next(self) -> Prompt:
        # The file whose count is furthest behind its weight, so the weights hold in every window.
        drawn = sum(self._given.values()) + 1
        path = max(self._files, key=lambda path: self._shares[path] * drawn - self._given[path])
        file = self._files[path]
        for _ in range(2 * len(file)):  # covers a whole epoch from any position
            row = self._choose(path)
            self._read[path] += 1
            history = self._histories[path]
            prompt = render(file[row], self._tokenizer, visit=history.num_visits(row))
            if len(prompt.token_ids) <= self._max_prompt_tokens:
                history.draw(row)
                self._sampled[prompt.uid] = (path, row)
                self._given[path] += 1
                return prompt
            history.leave_out(row)
            self.num_too_long += 1
        raise ConfigError(
            f"every prompt of {file.name} is longer than "
            f"sampler.max_prompt_tokens={self._max_prompt_tokens}: raise it, or leave the file out."
        )

    def _choose(self, path: str) -> int:
        """Returns the next row of a file."""
        size = len(self._files[path])
        epoch, position = divmod(self._read[path], size)
        if epoch and self.by_difficulty:
            return self._histories[path].choose(self._generator(path, f"draw {self._read[path]}"))
        if self._orders.get(path, (-1, None))[0] != epoch:
            self._orders[path] = (epoch, self._generator(path, str(epoch)).permutation(size))
        return int(self._orders[path][1][position])

    def _generator(self, path: str, purpose: str) -> np.random.Generator:
        digest = hashlib.sha256(f"{self._seed}/{self._fingerprints[path]}/{purpose}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "little"))
