"""Tests that every command about GPUs can be parsed: a misspelt option would waste minutes on a rented GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.gpu_check.__main__ import _parser as parser_of_gpu_check
from benchmarks.real_model import arguments as parser_of_real_model
from nemo_prorl.__main__ import load
from nemo_prorl.commands.parsing import Parser
from nemo_prorl.config import ConfigError
from nemo_prorl.config.compose import compose
from tests.conftest import ROOT
from tests.docs.commands import sessions_of

MAKE_VARIABLES = {"ARGS", "PYTHON"}


def check(words: Sequence[str]) -> None:
    """Raises the command's own error for arguments that it does not know."""
    match list(words):
        case ["make", target, *variables]:
            assert f"\n{target}:" in (ROOT / "Makefile").read_text()
            given = dict(variable.split("=", 1) for variable in variables)
            assert given.keys() <= MAKE_VARIABLES
            check(["python", "-m", "benchmarks.gpu_check", *given.get("ARGS", "").split()])
        case ["python", "-m", "benchmarks.gpu_check", *arguments]:
            parser_of_gpu_check().parse_args(arguments)
        case ["python", "-m", "benchmarks.real_model", *arguments]:
            given = parser_of_real_model().parse_intermixed_args(arguments)
            compose("smollm2", given.overrides, conf_dir=ROOT / "conf")
        case ["python", "-m", "pytest", *paths]:
            assert [path for path in paths if not (ROOT / path).exists()] == []
        case ["python", "-m", "nemo_prorl", name, *arguments] | [
            "torchrun", "--nproc-per-node", _, "-m", "nemo_prorl", name, *arguments
        ]:  # fmt: skip
            check_project_command(name, arguments)
        case ["python", script, *_]:
            assert (ROOT / script).is_file()
        case _:
            raise AssertionError(f"teach this test what {words[0]} is")


class Parsed(Exception):
    """Raised to end a command once it has parsed its arguments."""


def check_project_command(name: str, arguments: Sequence[str]) -> None:
    """Checks arguments and overrides. Those for a run's resolved.yaml, which does not exist here, are looked up in
    conf/; `...` stands for the reader's own values."""
    parse = Parser.parse_intermixed_args

    def parse_only(parser: Parser, given: Sequence[str]) -> None:
        raise Parsed(parse(parser, given))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_intermixed_args", parse_only)
        with pytest.raises(Parsed) as caught:
            load(name).main([word for word in arguments if word != "..."])
    given = caught.value.args[0]
    is_record = given.config_name.endswith("/resolved.yaml")
    config_name, overrides = ("stories", ["model.path=m"]) if is_record else (given.config_name, [])
    compose(config_name, [*overrides, *given.overrides], conf_dir=ROOT / "conf")


COMMANDS = [
    words
    for page in ("docs/gpu.md", "experiments/gpu.md")
    for words, _ in sessions_of((ROOT / page).read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_a_command_of_the_page_can_be_parsed(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    check(words)


@pytest.mark.parametrize(
    "line", ["nemo_prorl train --config-name stories model.path=m model.fp9=blockwise", "pytest tests/gpus"]
)
def test_a_mistake_on_the_page_would_be_seen(line: str) -> None:
    with pytest.raises((ConfigError, AssertionError)):
        check(["python", "-m", *line.split()])
