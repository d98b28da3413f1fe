"""vLLM, which samples: its engine, what runs inside its process, and how it gets the trainer's weights."""
