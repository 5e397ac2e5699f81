"""Ends with a sentence where there is no GPU, before anything is set up, downloaded or trained.

Runs on a bare Python, for `make gpu-evidence`.
"""

from __future__ import annotations

from parbench import machine
from parbench.errors import ParbenchError, run_main


def main() -> None:
    """The command line."""
    if machine.visible(machine.accelerators()):
        return
    hidden = " that CUDA_VISIBLE_DEVICES leaves" if machine.accelerators() else ""
    raise ParbenchError(
        f"this machine has no NVIDIA GPU{hidden}, so that nothing was set up, downloaded or "
        "trained; run it where nvidia-smi lists one, or on a cluster: snakemake --profile slurm "
        "--configfile profiles/gpu.yaml"
    )


if __name__ == "__main__":
    run_main(main)
