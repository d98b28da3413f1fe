"""What a run begins with: a tokenizer that it cannot use is an error of one sentence, before anything heavy is loaded.
The names of files tell what validation will measure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nemo_prorl.config import ConfigError, DataConfig, ExpManagerConfig, ModelConfig, RunConfig
from nemo_prorl.data.inputs import load_tokenizer, with_prompt_files
from nemo_prorl.demo.tiny_policy import build_tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]})
    )
    return tmp_path


def loaded(folder: Path) -> object:
    return load_tokenizer(RunConfig(model=ModelConfig(path=str(folder))))


def test_a_tokenizer_with_a_template_is_loaded(model: Path) -> None:
    assert loaded(model)


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


@pytest.mark.parametrize(
    ("validation", "words"),
    [
        ([], ["No validation: "]),
        (["held_out.jsonl"], []),
        (["link.jsonl", "held_out.jsonl"], ["link", "its validation says nothing about new problems"]),
    ],
)
def test_validation_on_nothing_or_on_training_problems_is_said(
    tmp_path: Path, validation: list[str], words: list[str]
) -> None:
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": f"1+1 ({name})", "answer": "2"}) + "\n")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "train.jsonl")
    config = RunConfig(
        data=DataConfig(
            train={str(tmp_path / "train.jsonl"): 1.0},
            validation=[str(tmp_path / name) for name in validation],
        ),
        exp_manager=ExpManagerConfig(explicit_log_dir=str(tmp_path / "run")),
    )
    said = [text for text in with_prompt_files(config)[1] if "1 row, prompts from" not in text]
    assert len(said) == bool(words)
    assert all(word in said[0] for word in words)
