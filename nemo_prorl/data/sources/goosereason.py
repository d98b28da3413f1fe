"""Multiple choice: GooseReason-0.7M, NVIDIA's tasks for models that ProRL's own data teach no more (arXiv 2601.22975).

A record has `question`, a text of which a key step is masked, `options`, the step and others made up by a model, and
`answer`, the letter of the step. A file is of mathematics (AoPS-Instruct), code (rStar-Coder) or STEM (MegaScience).
"""

from __future__ import annotations

from dataclasses import replace

from nemo_prorl.data.building.source import BOX_SUFFIX, NoRow, Problem, Record, Source, multiple_choice


def convert(record: Record) -> Problem:
    """Turns a record into a problem. Raises NoRow, and ConfigError for a damaged one."""
    question = record.text("question", otherwise="no_problem")
    letter = record.text("answer", otherwise="no_answer").upper()
    options = record.list("options")
    texts = {option.strip() for option in options if isinstance(option, str)} - {""}
    if len(texts) < max(2, len(options)):
        raise NoRow("options_not_different_texts")
    right = ord(letter) - ord("A") if len(letter) == 1 else -1
    if not 0 <= right < len(options):
        raise NoRow("answer_not_an_option")
    asked = multiple_choice(question, [option.strip("\n") for option in options], right)
    return replace(asked, suffix=BOX_SUFFIX, kind=record.origin.partition("-")[0])


SOURCE = Source(
    name="goosereason",
    domain="stem",
    summary="673k texts on mathematics, code and science with a masked step, to be found among nine",
    hub_id="nvidia/Nemotron-Research-GooseReason-0.7M",
    hub_files="data/*.jsonl",
    licence="CC-BY-NC-4.0 (dataset card): not for commercial use",
    columns=("question", "options", "answer"),
    convert=convert,
)
