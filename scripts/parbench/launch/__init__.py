"""Lock devices for a cell, start its ranks and end them, on this machine or by Slurm."""
