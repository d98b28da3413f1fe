"""Where untrusted text is evaluated and untrusted programs run.

    probe      which level holds on this machine, found by attacking it
    launch     starts zygotes and judges: the only file that starts a process
    zygote     a fork server: imports once, prepares its ground, forks confined children
    cell       what stands between a child and the machine (with kernel, syscalls, seccomp, landlock)
    runner     in the cell: runs a program on its inputs, one process a test
    judge      outside: compares what came out, as plain data
    programs   a program that is run for what it writes, without a verdict
    clock      computing, waiting, sleeping: what makes verdicts independent of load

Two levels; a machine with neither grades no code.

    namespaces  user, mount, pid, network, ipc and uts namespaces, Landlock, seccomp
    landlock    Landlock and seccomp

Covered, at both levels, and attacked in tests/reward/test_sandbox.py:
    network (no socket can be made), files of the host (only the interpreter and its libraries can be read; nothing
    can be written but, at level `namespaces`, a /tmp of 64 MiB that is new for each submission), other processes
    (no fork, no exec, no signal to others, no ptrace, no nested namespace; what a submission started is gone before
    its verdict is given), memory, CPU time over all tests, sleep, output, open files, stack; the environment, the
    arguments, the descriptors and the expected outputs of the service (never in the cell); root (uid is not 0, no
    capability, no_new_privs). x86_64 and aarch64; other machines are refused.

Not covered:
    bugs of the kernel, side channels (timing, caches), exhaustion of the memory bandwidth of the host. Submissions
    of one judge share a zygote, so a bug that breaks out of seccomp, Landlock and the namespaces reaches the others
    of that zygote. At level `landlock` processes are visible by number and files by name: a submission could learn
    that they exist and how large and old they are, but not read or change them. As root without user namespaces the
    cell keeps CAP_DAC_READ_SEARCH, to walk to an interpreter below a closed directory; Landlock confines what it
    opens. Threads are not limited in number but by memory. The aarch64 filter is tested by interpretation, not on
    such a machine.
    Graders of mathematics, puzzles and instructions run in cells too, but one cell serves many responses: they parse
    text and never evaluate it (reward.graders.safe_expression).
"""
