"""How much of what a policy writes occurs verbatim in a corpus: the creativity index of evaluations' responses.

    python -m experiments.creativity --corpus PATH DIR [DIR ...]    # DIR: written by `evaluate suite=NAME out=DIR`

Prints a line for each benchmark, and how the first evaluation's index goes with what was gained until the last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.creativity.corpus import creativity_of
from nemo_prorl.evaluation import results
from nemo_prorl.evaluation.comparison import compare, correlation


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("evaluations", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--corpus", type=Path, required=True, help="a file or folder of text, JSON Lines or Parquet")
    parser.add_argument("--samples", type=int, default=4, help="responses per prompt that are looked at (default: 4)")
    options = parser.parse_args()
    read = [results.read(folder) for folder in options.evaluations]
    names = [str(folder) for folder in options.evaluations]
    found = creativity_of(
        options.evaluations,
        [header["key"] for header, _ in read],
        names,
        {name: dict.fromkeys(result.prompts, name) for name, result in read[0][1].items()},
        options.corpus,
        options.samples,
    )
    for benchmark, indices in found.items():
        told = ", ".join(f"{name} {'–' if index is None else f'{index:.3f}'}" for name, index in indices.items())
        print(f"creativity index of {benchmark} (0 to 8): {told}")
    if len(read) > 1:
        gains = {one.name: one.gain.value for one in compare([of for _, of in read], say=print)}
        pairs = [
            (index, gains[name]) for name, of in found.items() if (index := of[names[0]]) is not None and name in gains
        ]
        if (told := correlation([index for index, _ in pairs], [gain for _, gain in pairs])) is not None:
            print(f"the first one's index against the gain, over {len(pairs)} benchmarks: correlation {told:.2f}")


if __name__ == "__main__":
    main()
