"""A tokenizer that a run cannot use, or that is another model's, is an error of one sentence before the engines are
loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.boundary.tiny_policy import build_tokenizer
from nemo_prorl.config import ConfigError, ModelConfig, RunConfig
from nemo_prorl.data.mix import render
from nemo_prorl.engines.tokenizer import check_tokenizer, load_tokenizer, remarks, stop_ids
from tests import chat_templates
from tests.chat_templates import tokenizer_with
from tests.data.conftest import make_row
from tests.model_folders import QWEN

VOCAB_SIZE = 104


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build_tokenizer().save_pretrained(tmp_path)
    config = QWEN | {"model_type": "qwen2", "vocab_size": VOCAB_SIZE, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def of(folder: Path) -> RunConfig:
    return RunConfig(model=ModelConfig(path=str(folder)))


def loaded(folder: Path) -> Any:
    return load_tokenizer(of(folder))


def change(file: str, **values: Any) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        content = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(content | values))

    return edit


def without_eos(folder: Path) -> None:
    change("config.json", eos_token_id=None)(folder)
    change("tokenizer_config.json", eos_token=None)(folder)


def test_a_tokenizer_with_a_template_is_loaded(model: Path) -> None:
    assert loaded(model)
    assert max(loaded(model).get_vocab().values()) == VOCAB_SIZE - 1


def test_a_vocabulary_larger_than_the_tokenizers_is_usual(model: Path) -> None:
    change("config.json", vocab_size=VOCAB_SIZE + 24)(model)
    assert loaded(model)


OUTSIDE = r"has token 104 \(.*\), but the model's vocabulary has 104 entries .*: put the model's own tokenizer files"


def without_tokenizer(folder: Path) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()


def without_tokenizer_but_a_template(folder: Path) -> None:
    template = (folder / "chat_template.jinja").read_text()
    without_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(template)


def torn(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(text[: len(text) // 2])


def template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text) and None


@pytest.mark.medium
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (without_tokenizer, "tokenizer"),
        (
            without_tokenizer_but_a_template,
            r"(there is no tokenizer|cannot be loaded).*put the model's tokenizer",
        ),
        (torn, "cannot be loaded .*put the model's tokenizer files there"),
        (
            lambda folder: (folder / "chat_template.jinja").unlink(),
            "has no chat template: add chat_template.jinja",
        ),
        (
            template("{% for message in messages %}}{{ message"),
            "chat template in .* cannot be used .*: correct",
        ),
        (template("{{ raise_exception('no users here') }}"), "cannot be used .*no users here"),
        (template("hello"), "leaves the question out"),
        (
            change("tokenizer_config.json", extra_special_tokens=["<|user|>", "<|assistant|>", "<tool>"]),
            OUTSIDE,
        ),
        (change("added_tokens.json", **{"<tool>": 104}), OUTSIDE),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), OUTSIDE),
        (change("config.json", vocab_size=VOCAB_SIZE - 1), r"has token 103 \(.*vocabulary has 103 entries"),
        (lambda folder: (folder / "tokenizer.json").write_text("[]"), "cannot be loaded"),
        (
            change("tokenizer.json", model={"type": "BPE", "vocab": {}, "merges": []}),
            "cannot be loaded|no tokenizer",
        ),
        (without_eos, "names no end-of-sequence token, .*: write eos_token_id"),
        (
            change("generation_config.json", eos_token_id=VOCAB_SIZE),
            "has eos_token_id=104: a token of the model",
        ),
    ],
)
def test_what_keeps_a_tokenizer_from_working_is_one_sentence(
    model: Path, spoil: Callable[[Path], None], words: str
) -> None:
    spoil(model)
    with pytest.raises(ConfigError, match=words) as caught:
        loaded(model)
    assert str(model) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_conversion_needs_no_tokenizer_but_refuses_another_models(model: Path) -> None:
    change("added_tokens.json", **{"<tool>": 104})(model)
    with pytest.raises(ConfigError, match=OUTSIDE):
        check_tokenizer(model)
    for file in model.iterdir():
        if file.name != "config.json":
            file.unlink()
    check_tokenizer(model)


def test_stop_tokens_are_the_declared_ones_and_the_tokenizers(model: Path) -> None:
    end = loaded(model).eos_token_id
    change("generation_config.json", eos_token_id=[7, 5])(model)
    assert stop_ids(model, loaded(model)) == sorted({5, 7, end})


DATED = "{{ strftime_now('%d %b %Y') }}{% for message in messages %}<|user|>{{ message['content'] }}<|end|>{% endfor %}"


def test_todays_date_is_the_same_every_day(model: Path) -> None:
    """Otherwise a run over midnight would go on with other prompts, and so would a resume."""
    template(DATED)(model)
    prompt = render(make_row("a", "1+1"), loaded(model))
    assert prompt.text == "26 Jul 2024<|user|>1+1<|end|>"
    (remark,) = remarks(of(model), loaded(model))
    assert "always 26 Jul 2024" in remark


CHATML = "{% for message in messages %}<|assistant|>{{ message['content'] }}END\n{% endfor %}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (CHATML.replace("END", "<|end|>"), ""),
        (
            CHATML.replace("END", "<|user|>"),
            r"ends an answer with '<\|user\|>', which is none of .*'<\|end\|>'",
        ),
        (CHATML.replace("END\n", ""), "ends an answer with no token, which is none of"),
        ("{{ messages[0]['content'] }}", ""),
        (
            "{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0]['content'] }}",
            "",
        ),
    ],
    ids=["stops", "goes on", "nothing", "no answers", "no conversations"],
)
def test_a_turn_that_ends_with_no_stop_token_is_said(model: Path, text: str, words: str) -> None:
    template(text)(model)
    said = remarks(of(model), loaded(model))
    assert len(said) == bool(words)
    assert all(re.search(words, sentence) for sentence in said)


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("R1_DISTILL", "<｜end▁of▁sentence｜>"),
        ("QWEN2_5", "<|im_end|>"),
        ("QWEN3", "<|im_end|>"),
        ("LLAMA3", "<|eot_id|>"),
        ("PHI4", "<|im_end|>"),
        ("PHI4_REASONING", "<|im_end|>"),
    ],
)
def test_a_familys_turn_ends_with_a_stop_token_only_if_it_is_declared(
    model: Path, name: str, end: str
) -> None:
    tokenizer = tokenizer_with(getattr(chat_templates, name), end)
    change("generation_config.json", eos_token_id=[1, 2])(model)
    assert stop_ids(model, tokenizer) == [1, 2]
    assert remarks(of(model), tokenizer) == []
    change("generation_config.json", eos_token_id=1)(model)
    said = remarks(of(model), tokenizer)
    assert [f"ends an answer with '{end}" in sentence for sentence in said] == [True]


@pytest.mark.parametrize("name", ["MISTRAL", "PHI4_MINI"])
def test_some_families_end_a_conversation_with_the_end_of_the_sequence(model: Path, name: str) -> None:
    change("generation_config.json", eos_token_id=1)(model)
    assert remarks(of(model), tokenizer_with(getattr(chat_templates, name))) == []


def test_the_demos_template_gives_no_cause_for_remarks(model: Path) -> None:
    assert remarks(of(model), loaded(model)) == []
