"""The reward service as other trainers' reward functions, one file a trainer. None of them imports its trainer.

connection    one client a process, and what a response without a verdict is called
columns       which column of a data set's row is the label, and what of a completion is the response
trl           GRPOTrainer(reward_funcs=[reward_service("http://...")])
verl          reward.custom_reward_function.path=pkg://reward.adapters.verl
verifiers     a reward of a task, and a function of a rubric
"""
