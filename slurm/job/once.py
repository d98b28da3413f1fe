"""Runs a command as one task of the job, in the container that site.env names: python3 -m slurm.job.once COMMAND..."""

from __future__ import annotations

import os
import subprocess
import sys

from slurm.job.allocation import step_command

if __name__ == "__main__":
    image, checkout = os.environ.get("CONTAINER", ""), os.environ.get("PWD", os.getcwd())
    step = step_command(image, ["--nodes=1", "--ntasks=1"], sys.argv[1:], os.environ, checkout)
    sys.exit(subprocess.run(step, check=False).returncode)
