"""The only training loop, with its checkpoints, input and BatchNorm over ranks."""
