"""The sections of options, each a dataclass: TrainerConfig in trainer.py declares `trainer.*`."""
