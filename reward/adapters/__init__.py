"""The reward service as other trainers' reward functions, one file per trainer. None of them imports its trainer.

connection    one client per process, and the errors for a response that was not graded
columns       finds the label in a data set's row and the response in a completion
trl           GRPOTrainer(reward_funcs=[reward_service("http://...")])
verl          reward.custom_reward_function.path=pkg://reward.adapters.verl
verifiers     a reward for a task, and a function for a rubric
"""
