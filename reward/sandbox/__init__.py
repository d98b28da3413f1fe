"""The sandbox: the place where untrusted programs run and untrusted text is parsed.

    probe      finds the level that works on this machine, by attacking it
    launch     starts fork servers ("zygotes") and judges: on the trusted side the only file that starts a process
    zygote     a fork server: imports once, sets up confinement, forks confined children
    cell       confines a child ("cell": the confined environment; with kernel, seccomp, landlock)
    runner     inside the cell: runs a program on its inputs, one process per test
    execution  outside the cell: has a program run and collects its outputs (with limits)
    clock      measures computing, waiting and sleeping, so that grading does not depend on load

There are three levels (cell.Level says what each consists of); a machine where none of them works grades no code.

Covered at all levels, and attacked in tests/reward/test_sandbox.py:
    network (no socket can be made), files of the host (only the interpreter and its libraries can be read; nothing can
    be written except, at the levels with namespaces, a /tmp of 64 MiB that is new for each submission), other processes
    (no fork, no exec, no signal to others, no ptrace, no nested namespace; everything that a submission started is gone
    before it is graded), memory, CPU time over all tests, sleep, output, open files, stack; the service's environment,
    arguments, descriptors and expected outputs (never in the cell); root (uid is not 0, no capability, no_new_privs).
    x86_64 and aarch64; other machines are refused.

Not covered:
    kernel bugs, side channels (timing, caches), exhaustion of the host's memory bandwidth. Submissions of one judge
    share a fork server, so a bug that breaks out of seccomp, Landlock and the namespaces reaches the others. At level
    `landlock` processes are visible by number and files by name: a submission could learn that they exist and how large
    and old they are, but not read or change them. At level `namespaces-only` mounts alone protect the files: everything
    below the mounted folders can be read as far as its permissions allow, and a named pipe there to which everybody may
    write could be written to, because a read-only mount does not prevent that. As root without user namespaces the cell
    keeps CAP_DAC_READ_SEARCH, to reach an interpreter below a closed directory; Landlock confines what it opens. The
    number of threads is limited only by memory. The aarch64 filter is tested by interpretation, not on such a machine.
    Graders of mathematics, puzzles and instructions run in cells too, but one cell serves many responses: they parse
    text and never evaluate it (reward.graders.safe).
"""
