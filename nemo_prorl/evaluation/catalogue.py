"""Every benchmark of the papers, with the numbers that ProRL (arXiv 2505.24864, tables 1 to 3 and 5) reports for it.

The paper's own names, files and sizes are used where it states them. `python -m nemo_prorl evaluate --list` prints this
catalogue; docs/evaluation.md says how to add to it.
"""

from __future__ import annotations

from collections.abc import Callable

from nemo_prorl.config import ConfigError, did_you_mean
from nemo_prorl.data.building.source import BOX_SUFFIX, Problem, Record
from nemo_prorl.evaluation.benchmark import Benchmark, ScoreMetric
from nemo_prorl.evaluation.schemas import answers, human_eval, instructions, programs, puzzles
from reward.sandbox.limits import MAX_CPU_S

BASE = "DeepSeek-R1-Distill-Qwen-1.5B"
DEEPSCALER = "DeepScaleR-1.5B"
DEEPCODER = "DeepCoder-1.5B"
LARGER = "DeepSeek-R1-Distill-Qwen-7B"
PRORL = "Nemotron-Research-Reasoning-Qwen-1.5B"
MODELS = (BASE, DEEPSCALER, DEEPCODER, LARGER, PRORL)
"""Rows of the paper's tables, in their order."""

QWEN = "https://github.com/QwenLM/Qwen2.5-Math/tree/main/evaluation/data"
PRIME = "PRIME-RL/Eurus-2-RL-Data on the hub, validation.parquet (MIT; all four sets in one file)"
EXAMS = "two exams of 15"
LIVECODEBENCH_LIMITS = {"cpu_s": MAX_CPU_S, "test_cpu_s": 6.0}
"""LiveCodeBench's runner gives each test 6 s of wall time (lcb_runner, `--timeout`). All tests together get the
server's maximum."""
EVALPLUS_LIMITS = {"cpu_s": MAX_CPU_S}
"""EvalPlus gives each input 1 s (4 s in newer versions) or four times the reference's time: all together more than the
server's maximum."""
HUMANEVAL_LIMITS = {"cpu_s": 3.0}
"""OpenAI's evaluate_functional_correctness gives a whole program 3 s."""
PUZZLES_REMARK = (
    "The papers' 96 tasks are those of Reasoning Gym 0.1.13; the puzzles and verifiers here are of the version that "
    "results.json names, and generators and scorers have changed in between"
)
MAX_MISSING_PUZZLES = 48
"""Our choice: half a percent of 9,600, less than the 100 of one task. `data build reasoning_gym` makes slightly fewer
than 9,600, because it drops puzzles whose answer fails their own scorer and some tasks run out of different questions:
9,590 in the build that experiments/data.md describes."""
BUILD_PUZZLES = "python -m nemo_prorl data build reasoning_gym (writes data/reasoning_gym)"


def _math(
    name: str,
    title: str,
    files: tuple[str, ...],
    where: str,
    licence: str,
    count: tuple[int, str],
    *numbers: float,
) -> Benchmark:
    """A math benchmark. `count`: num_problems and counted_by. `numbers`: the paper's (table 1), for the base model,
    DeepScaleR, the 7B model and ProRL's."""
    return Benchmark(
        name=name,
        title=title,
        domain="math",
        metric=ScoreMetric.pass_at_1,
        files=files,
        convert=answers.convert,
        suffix=BOX_SUFFIX,
        where=where,
        licence=licence,
        num_problems=count[0],
        counted_by=count[1],
        published=dict(zip((BASE, DEEPSCALER, LARGER, PRORL), numbers, strict=True)),
    )


def _code(name: str, title: str, kinds: tuple[str, ...], *numbers: float) -> Benchmark:
    """A part of PRIME's validation set, or of DeepCoder's files. `numbers`: the paper's (table 2), for the base model,
    DeepCoder, the 7B model and ProRL's."""
    return Benchmark(
        name=name,
        title=title,
        domain="code",
        metric=ScoreMetric.pass_at_1,
        files=(*(f"{kind}*" for kind in kinds), "*[Ee]urus*/**/validation*.parquet", "*[Ee]urus*.parquet"),
        convert=programs.only_from(*kinds),
        where=f"{PRIME}, or a file of rllm's (agentica-project) of that name",
        licence="as the problems' authors: research use",
        published=dict(zip((BASE, DEEPCODER, LARGER, PRORL), numbers, strict=True)),
    )


def _puzzles(
    name: str,
    title: str,
    convert: Callable[[Record], Problem],
    file: str,
    *numbers: float,
    num_problems: int = 100,
) -> Benchmark:
    """A puzzle benchmark. `numbers`: the paper's (table 3), for the base model, the 7B model and ProRL's."""
    return Benchmark(
        name=name,
        title=title,
        domain="logic",
        metric=ScoreMetric.reward,
        files=(f"reasoning_gym/{file}.parquet", f"../reasoning_gym/{file}.parquet"),
        convert=convert,
        where=BUILD_PUZZLES,
        licence="Apache-2.0 (the library)",
        num_problems=num_problems,
        num_may_differ=MAX_MISSING_PUZZLES if num_problems > 100 else 0,
        counted_by="ProRL, section 3.4: 100 of each task",
        has_puzzles=num_problems > 100,
        remark=PUZZLES_REMARK if num_problems > 100 else "",
        published=dict(zip((BASE, LARGER, PRORL), numbers, strict=True)) if numbers else {},
    )


MATH = (
    _math("aime2024", "AIME24", ("aime*24*",), f"{QWEN}/aime24", "MAA; research use", (30, EXAMS),
          28.54, 40.21, 53.54, 48.13),
    _math("aime2025", "AIME25", ("aime*25*",), "opencompass/AIME2025 on the hub, both files", "MAA; research use",
          (30, EXAMS), 22.71, 31.46, 40.83, 33.33),
    _math("amc", "AMC", ("amc*",), f"AI-MO/aimo-validation-amc on the hub (2022 and 2023), or {QWEN}/amc23 (2023)",
          "MAA; research use", (83, "aimo-validation-amc: 2022 and 2023, as in the paper"), 62.58, 73.04, 82.83, 79.29),
    _math("math", "Math", ("math500*", "MATH-500*/**/*", "math_test*", "math/**/test*", "MATH/test/**/*"),
          "HuggingFaceH4/MATH-500 on the hub", "MIT", (500, "MATH-500, which DeepScaleR and SimpleRL use"),
          82.90, 89.36, 93.68, 91.89),
    _math("minerva", "Minerva", ("minerva*",), f"{QWEN}/minerva_math", "research use", (272, "Qwen's copy"),
          26.38, 41.57, 50.60, 47.98),
    _math("olympiadbench", "Olympiad", ("olympiad*",), f"{QWEN}/olympiadbench", "Apache-2.0",
          (675, "Qwen's copy"), 43.58, 51.63, 57.66, 60.22),
)  # fmt: skip

CODE = (
    _code("apps", "apps", ("apps",), 20.95, 30.37, 42.08, 41.99),
    _code("codecontests", "cc", ("codecontests", "code_contests"), 16.79, 23.76, 32.76, 31.80),
    _code("codeforces", "cf", ("codeforces",), 14.13, 21.70, 33.08, 34.50),
    _code("taco", "taco", ("taco",), 8.03, 13.76, 19.08, 20.81),
    Benchmark(
        name="humaneval_plus", title="human", domain="code", metric=ScoreMetric.pass_at_1,
        files=("[Hh]uman[Ee]val[Pp]lus*", "human_eval_plus*", "humanevalplus*/**/*.parquet"),
        convert=human_eval.convert,
        where="evalplus/humanevalplus on the hub",
        licence="Apache-2.0 (EvalPlus), MIT (HumanEval)",
        task=EVALPLUS_LIMITS,
        num_problems=164, counted_by="EvalPlus",
        remark=human_eval.REMARK,
        published={BASE: 61.77, DEEPCODER: 73.40, LARGER: 83.32, PRORL: 72.05},
    ),
    Benchmark(
        name="livecodebench", title="LCB", domain="code", metric=ScoreMetric.pass_at_1,
        files=("livecodebench*", "code_generation_lite/test*.jsonl", "lcb*"),
        convert=programs.convert,
        where="livecodebench/code_generation_lite on the hub, test.jsonl to test5.jsonl (release v5; test6.jsonl adds "
        "problems of January 2025)",
        licence="CC-BY-4.0 (dataset card); problems of LeetCode, AtCoder, Codeforces",
        task=LIVECODEBENCH_LIMITS,
        date_column="contest_date",
        num_problems=279, counted_by="release v5 from 2024-08-01 to 2025-02-01, as DeepCoder evaluates",
        remark="The papers name neither release nor window of LiveCodeBench; the window of "
        "evaluation.livecodebench_dates is our reading (experiments/benchmarks.md)",
        published={BASE: 16.80, DEEPCODER: 22.76, LARGER: 38.04, PRORL: 23.81},
    ),
)  # fmt: skip

OTHER = (
    Benchmark(
        name="gpqa_diamond", title="GPQA", domain="stem", metric=ScoreMetric.pass_at_1,
        files=("gpqa*diamond*", "GPQA*/**/*.parquet"),
        convert=answers.choices,
        suffix=BOX_SUFFIX,
        where="spawn99/GPQA-diamond-ClaudeR1 (the paper's) or Idavidrein/gpqa (gpqa_diamond.csv) on the hub",
        licence="CC-BY-4.0; its authors ask not to put the questions on the web",
        num_problems=198, counted_by="GPQA's authors",
        remark="The papers' 15.86 for the base model is below the 25 % of guessing one of four letters, so their form "
        "of GPQA was probably another than lettered options; they do not say which. Compare gains, not levels",
        published={BASE: 15.86, LARGER: 35.44, PRORL: 41.78},
    ),
    Benchmark(
        name="ifeval", title="IFEval", domain="instruction", metric=ScoreMetric.reward,
        files=("ifeval*", "IFEval*/**/*.jsonl", "*instruction_following_eval*/**/input_data.jsonl", "input_data.jsonl"),
        convert=instructions.convert,
        where="google/IFEval on the hub, ifeval_input_data.jsonl",
        licence="Apache-2.0",
        num_problems=541, counted_by="google-research",
        published={BASE: 44.05, LARGER: 58.01, PRORL: 66.02},
    ),
    _puzzles("reasoning_gym", "Reasoning", puzzles.by_category, "validation", 4.24, 28.55, 59.06,
             num_problems=9600),
    _puzzles("acre", "acre", puzzles.only("acre"), "out_of_distribution", 5.99, 20.21, 58.57),
    _puzzles("boxnet", "boxnet", puzzles.only("boxnet"), "out_of_distribution", 0.00, 1.71, 7.91),
    _puzzles("game_of_life_halting", "game", puzzles.only("game_of_life_halting"), "out_of_distribution",
             3.49, 12.94, 52.29),
)  # fmt: skip

FURTHER = (
    _puzzles("graph_color", "graph_color", puzzles.only("graph_color"), "validation"),
    Benchmark(
        name="graph_color_sizes", title="graph_color by size", domain="logic", metric=ScoreMetric.reward,
        generate=puzzles.graphs,
        convert=puzzles.sized,
        where="made here",
        licence="Apache-2.0 (the library)",
        num_problems=puzzles.NUM_GRAPHS * len(puzzles.GRAPH_SIZES), counted_by="made here",
    ),
    Benchmark(
        name="humaneval", title="HumanEval", domain="code", metric=ScoreMetric.pass_at_1,
        files=("HumanEval.jsonl*", "humaneval.jsonl*", "openai_humaneval/**/*.parquet"),
        convert=human_eval.convert,
        where="https://github.com/openai/human-eval, data/HumanEval.jsonl.gz",
        licence="MIT",
        task=HUMANEVAL_LIMITS,
        num_problems=164, counted_by="OpenAI",
        remark=human_eval.REMARK,
    ),
    Benchmark(
        name="demo", title="the demo's puzzles", domain="logic", metric=ScoreMetric.pass_at_1,
        files=("measured.parquet",),
        convert=puzzles.row,
        where="python -m nemo_prorl.demo.build runs/tiny (writes runs/tiny/data)",
        licence="Apache-2.0 (the library)",
    ),
)  # fmt: skip

BENCHMARKS = {benchmark.name: benchmark for benchmark in (*MATH, *CODE, *OTHER, *FURTHER)}

ALIASES = {"aime24": "aime2024", "aime25": "aime2025"}
"""Shorter names, for the command line."""

TABLES = (("Math", MATH), ("Code", CODE), ("STEM, instruction following, logic puzzles", OTHER))
"""Title, and the benchmarks whose columns the table has: the paper's tables 1, 2 and 3."""
WITH_AVERAGE = {"Math", "Code"}

CATEGORIES: dict[str, tuple[float, float, float]] = {
    "algebra": (0.73, 45.80, 97.21),
    "algorithmic": (3.56, 21.75, 53.90),
    "arc": (1.53, 3.42, 2.52),
    "arithmetic": (5.36, 55.43, 82.81),
    "code": (1.22, 7.84, 29.84),
    "cognition": (6.47, 30.46, 40.16),
    "games": (2.34, 5.15, 26.38),
    "geometry": (1.05, 17.38, 89.84),
    "graphs": (6.64, 33.29, 66.49),
    "induction": (1.32, 29.31, 73.50),
    "logic": (10.90, 34.96, 82.94),
}
"""Reasoning Gym by category: the base model, the 7B model, ProRL's (table 5)."""


def get(name: str) -> Benchmark:
    """Returns the benchmark. Raises ConfigError for an unknown name."""
    name = ALIASES.get(name, name)
    if name not in BENCHMARKS:
        hint = did_you_mean(name, BENCHMARKS, f"there are {', '.join(BENCHMARKS)}.", cutoff=0.5)
        raise ConfigError(f"{name} is not a benchmark: {hint}")
    return BENCHMARKS[name]
