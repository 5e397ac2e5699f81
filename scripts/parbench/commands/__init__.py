"""Define the commands of parbench, each in a file of its name.

The folder called/ has those that rules, the launcher, Slurm's tasks and images call. The docstring
of a file is the command's help; `parbench --help` shows its first line. A file defines

- ``add_arguments(parser)``, which imports no third-party package, so that completions and the help
  of all commands work on a bare Python,
- ``run(options)``, which imports what it needs, so that a command starts fast, and returns the exit
  status or None for 0.

``parser.set_defaults(snakemake=())`` lets a command take Snakemake's arguments:
``options.snakemake`` then has all those that ``parser`` does not know.
"""
