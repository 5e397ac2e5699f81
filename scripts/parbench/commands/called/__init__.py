"""Commands that rules, the launcher, Slurm's tasks and images call, rather than users."""
