"""Command line: `prorl-reward serve | score | explain | check`, or `python -m reward` in a checkout.

serve     grades over HTTP until SIGTERM
score     grades a JSONL file of requests
explain   shows how one response is graded, and why
check     prints what this machine can grade, and what is missing for the rest
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward.protocol import ScoreRequest
    from reward.service import Service

_SERVER_MODULES = ("fastapi", "langdetect", "reasoning_gym", "sympy", "uvicorn", "uvloop")
"""Modules that only the extra `server` of the distribution installs (reward/pyproject.toml)."""


def why_no_graders() -> str:
    """Returns a sentence about what the service needs and this environment lacks; empty if it lacks nothing."""
    missing = [name for name in _SERVER_MODULES if importlib.util.find_spec(name) is None]
    if not missing:
        return ""
    return (
        f"{', '.join(missing)} cannot be imported: this environment has the client of the reward service, not its "
        'graders; install them with pip install "nemo-prorl-reward[server]"'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 2, after one sentence, for a user's mistake."""
    options = _parser().parse_args(arguments)
    if why := why_no_graders():
        print(f"reward: {why}", file=sys.stderr)
        return 2
    from reward.graders.plugins import PluginError
    from reward.sandbox.launch import ZygoteError
    from reward.server import UserError

    try:
        return int(options.run(options) or 0)
    except (UserError, PluginError, ZygoteError) as error:
        # A plug-in that the fork server cannot load arrives here as a ZygoteError.
        print(f"reward: {str(error).removeprefix(f'{PluginError.__name__}: ')}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    is_installed = Path(sys.argv[0]).name == "prorl-reward"
    parser = argparse.ArgumentParser(
        prog="prorl-reward" if is_installed else "python -m reward",
        description="Verifiable rewards as a service.",
    )
    commands = parser.add_subparsers(required=True, dest="command")
    serve = commands.add_parser("serve", help="serve over HTTP until SIGTERM")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to bind; other than loopback needs a token file"
    )
    serve.add_argument("--port", type=_port, default=0, help="0 lets the system choose (default)")
    serve.add_argument("--ready-file", type=Path, help="where to write the ready line, by atomic rename")
    serve.add_argument("--token-file", type=Path, help="file with mode 0600 that holds the shared token")
    serve.add_argument(
        "--exit-with-parent", type=int, metavar="PID", help="stop when this process, which starts it, is gone"
    )
    _common(serve)
    serve.set_defaults(run=_serve)
    score = commands.add_parser("score", help="grade a JSONL file of requests")
    score.add_argument(
        "file", type=Path, help="one request per line: domain, response, task; request_id is optional"
    )
    score.add_argument("--output", type=Path, help="where the results go (default: standard output)")
    _common(score)
    score.set_defaults(run=_score)
    explain = commands.add_parser("explain", help="say how one response is graded, and why")
    explain.add_argument("file", type=Path, help="a JSONL file of requests")
    explain.add_argument("--line", type=int, default=1, help="which line of the file, from 1 (default 1)")
    _common(explain)
    explain.set_defaults(run=_explain)
    check = commands.add_parser("check", help="say what this machine can grade")
    check.add_argument("--json", action="store_true", help="as JSON")
    check.set_defaults(run=_check)
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port: write a number from 0 to 65535")
    return port


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, default=0, help="workers per pool (default: one per core)")
    parser.add_argument(
        "--unsafe-no-sandbox",
        action="store_true",
        help="run model-written programs with resource limits only; for throw-away CI machines",
    )


def _service(options: argparse.Namespace, requests: Sequence[ScoreRequest] | None = None) -> Service:
    """Returns a service for these requests alone, or for all that may come."""
    from reward.sandbox.probe import strongest
    from reward.server import UserError
    from reward.service import Service
    from reward.version import version

    if options.workers < 0:
        raise UserError("--workers must be 1 or more, or 0 for one per core")
    level, reasons = strongest(allow_none=options.unsafe_no_sandbox)
    for reason in reasons:
        print(f"reward: {reason}", file=sys.stderr)
    only = None if requests is None else sorted({request.domain for request in requests})
    num_workers = options.workers or len(os.sched_getaffinity(0))
    return Service(level, num_workers, version(), only=only)


def _serve(options: argparse.Namespace) -> None:
    from functools import partial

    import uvloop

    from reward.frontends import router
    from reward.server import serve

    names = ("host", "port", "ready_file", "token_file", "exit_with_parent")
    given = {name: getattr(options, name) for name in names}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(partial(_service, options), [router], **given))


def _score(options: argparse.Namespace) -> int:
    from reward.offline import read_requests, score_requests

    requests = read_requests(options.file)
    return asyncio.run(score_requests(_service(options, requests), requests, options.output))


def _explain(options: argparse.Namespace) -> int:
    from reward.offline import explain, read_requests

    (request,) = read_requests(options.file, options.line)
    options.workers = 1
    return asyncio.run(explain(_service(options, [request]), request))


def _check(options: argparse.Namespace) -> None:
    """Prints whether all domains can be graded here, the sandbox level that works, and why no stronger one does."""
    from reward.graders.registry import domains
    from reward.sandbox.probe import strongest
    from reward.version import version

    level, reasons = strongest()
    known = sorted(domains())
    if options.json:
        report = {
            "sandbox": "none" if level is None else level.value,
            "reasons": reasons,
            "domains": known,
            "version": version(),
        }
        print(json.dumps(report))
        return
    print("yes: this machine can grade all domains" if level else "no: this machine cannot grade code")
    print(f"domains: {', '.join(name for name in known if level or name != 'code')}")
    print(f"sandbox: {f'level {level.value}, from which no attack escaped' if level else 'none'}")
    for reason in reasons:
        print(f"  {reason}")


if __name__ == "__main__":
    sys.exit(main())
