"""Lends devices to a cell, starts its ranks and ends them, here or by Slurm."""
