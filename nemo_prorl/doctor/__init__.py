"""What `python -m nemo_prorl doctor` looks at on a node before a run holds its GPUs.

Each module gathers the facts of one kind (`read_...`, `probe_...`) and judges them in pure functions (`judge_...`) that
return a `Finding`. Whatever needs torch runs in a child process, which may hang or crash without taking the rest along.
"""
