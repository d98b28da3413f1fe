"""Several trainings that go on from one checkpoint of a run, and what they tell about each other."""
