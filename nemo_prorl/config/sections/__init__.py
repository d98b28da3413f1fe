"""The sections of options, each in the file of its name: trainer.py declares `trainer.*`."""
