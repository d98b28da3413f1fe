"""Reward functions of the user's own (docs/custom_rewards.md).

child     runs one function in a process of its own; standard library only, because any interpreter may run it
process   starts that process, calls the function in it, ends it when a call takes too long
grader    the graders of engines/interface.py on one function, and on several of them mixed with the reward service
agreement one reward for all ranks of a run, and word of a change when a stage is resumed
check     everything about the functions that can be wrong before a run begins
"""
