"""Plans a chain of stages before it runs: its order, its differences, its cost, and what is still missing.

Reads YAML and a model's config.json; needs neither torch nor a GPU.
"""
