"""The user's own reward functions (docs/custom_rewards.md).

child     runs one function in a process of its own; standard library only, because any interpreter may run it
process   starts that process, calls the function in it, ends it when a call takes too long
grader    graders (see engines/interface.py) from one function, or from several mixed with the reward service
agreement checks that all ranks of a run have the same reward, and reports a change when a stage is resumed
check     finds mistakes in the functions before a run begins
"""
