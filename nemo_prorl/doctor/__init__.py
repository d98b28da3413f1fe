"""The checks of `python -m nemo_prorl doctor`, which examine a node before a run occupies its GPUs.

Each module gathers facts of one kind (`read_...`, `probe_...`) and judges them in pure functions (`judge_...`) that
return a `Finding`. Whatever needs torch runs in a child process, whose hang or crash does not stop the other checks.
"""
