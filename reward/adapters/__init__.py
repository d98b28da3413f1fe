"""The reward service as other trainers' reward functions, one file a trainer. None of them imports its trainer."""
