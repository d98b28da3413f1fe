"""Asks an OpenAI-compatible chat endpoint: many questions at a time, retried, and each only once.

Replies are cached in a SQLite file, keyed by everything that determines them, so a build that was stopped asks only
what is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tqdm import tqdm

from nemo_prorl.config import DataBuildConfig


class EndpointFailed(RuntimeError):
    """The endpoint cannot be used; the message is one sentence."""


def ask_all(questions: Sequence[str], options: DataBuildConfig, cache: Path, what: str) -> list[str | None]:
    """Returns the reply to each question, in order; None if the endpoint refused that one question. Several processes
    may share the cache. what: is shown on a terminal beside the number of replies.

    Raises EndpointFailed if a question gets no answer after all its retries; the replies so far are kept.
    """
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (
        closing(sqlite3.connect(cache, isolation_level=None, timeout=60)) as database,
        tqdm(desc=what, total=len(questions), unit=" replies", disable=None, dynamic_ncols=True) as shown,
    ):
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, model TEXT, question TEXT, reply TEXT)"
        )
        return asyncio.run(_ask_all(questions, options, database, shown))


async def _ask_all(
    questions: Sequence[str], options: DataBuildConfig, database: sqlite3.Connection, shown: tqdm[Any]
) -> list[str | None]:
    from openai import AsyncOpenAI

    answers: list[str | None] = [None] * len(questions)
    waiting = iter(enumerate(questions))
    try:
        async with (
            AsyncOpenAI(
                base_url=options.endpoint,
                api_key=os.environ.get(options.api_key_variable) or "none",
                max_retries=options.max_retries,
                timeout=options.endpoint_timeout_s,
            ) as client,
            asyncio.TaskGroup() as group,
        ):

            async def work() -> None:
                for number, question in waiting:  # shared: each worker takes the next
                    body = {
                        "model": options.model,
                        "messages": [{"role": "user", "content": question}],
                        "temperature": 0.0,  # greedy, and with a seed: as repeatable as the server allows
                        "seed": options.seed,
                        "max_tokens": options.max_reply_tokens,
                    }
                    key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
                    found = database.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
                    reply = str(found[0]) if found else await _ask(client, body, options)
                    if found is None and reply is not None:
                        row = (key, options.model, question, reply)
                        database.execute("INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?)", row)
                    answers[number] = reply
                    shown.update()

            for _ in range(min(options.concurrency, len(questions))):
                group.create_task(work())
    except* EndpointFailed as failures:  # the first failure itself instead of a group
        raise failures.exceptions[0] from None
    return answers


async def _ask(client: Any, body: dict[str, Any], options: DataBuildConfig) -> str | None:
    """Asks one question. The library retries 408, 409, 429, 5xx and lost connections, with the pauses of Retry-After or
    with growing ones."""
    from openai import APIConnectionError, APIStatusError

    try:
        completion = await client.chat.completions.create(**body)
    except APIStatusError as error:
        if error.status_code in (400, 413, 422):  # this question: too long, or against the endpoint's rules
            return None
        raise EndpointFailed(
            f"endpoint={options.endpoint} answered {error.status_code} ({' '.join(str(error.message).split())[:200]}); "
            "the replies so far are kept: start again when it works."
        ) from error
    except APIConnectionError as error:
        raise EndpointFailed(
            f"endpoint={options.endpoint} cannot be reached ({error}); the replies so far are kept: start again "
            "when it is up."
        ) from error
    return str(completion.choices[0].message.content or "")
