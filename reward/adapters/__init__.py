"""The reward service as other trainers' reward functions, one file per trainer. None of them imports its trainer.

connection    one client per process
trl           GRPOTrainer(reward_funcs=[reward_service("http://...")])
verl          reward.custom_reward_function.path=pkg://reward.adapters.verl; also for callers of a plain function
"""
