"""What a chain of stages would do, before it does it: its order, its differences, its cost, and what it still lacks.

Reads YAML and a model's config.json; knows neither torch nor a GPU.
"""
