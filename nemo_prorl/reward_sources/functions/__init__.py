"""The user's own reward functions (docs/custom_rewards.md)."""
