"""Questions to a recorded run: its steps computed again (rerun, remeasure), and trainings that go on from one of its
checkpoints with other options (arms, paired, table)."""
