"""What a job does between sbatch and its end; `python3 -m slurm.job STAGE [OVERRIDE...]`, which common.sh calls.

Runs on the node's own interpreter, outside of containers: Python 3.9 or newer, the standard library, nothing of
nemo_prorl. decisions.py and allocation.py are pure; folder.py has the files, commands.py calls Slurm, __main__.py does
one thing after the other.
"""
