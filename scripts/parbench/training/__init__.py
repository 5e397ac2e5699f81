"""The training loop that all strategies share, with its checkpoints and engines."""
