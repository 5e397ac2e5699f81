"""A copy of the project that tests edit, run Snakemake in, and count jobs of."""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from isolated import ROOT

# No test waits this long, however busy the machine: it only turns a hang into a failure.
HANG_SECONDS = 900
PARTS = (
    *("Snakefile", "config.yaml", "rules", "scripts", "studies", "profiles", "slurm"),
    *("containers", "pyproject.toml"),
)  # fmt: skip


def small_study(
    title: str, models: str, variants: str, *, epochs: int = 1, images: int = 100
) -> str:
    """Return a study for tests, as YAML: one seed and little data, so a cell takes seconds.

    ``models`` and ``variants`` are lines of YAML; one table shows all variants.
    """
    names = ", ".join(re.findall(r"^([\w-]+):", variants, re.M))
    return f"""
title: {title}
description: A small study for tests.
citation: null
dataset: digits
seeds: [0]
settings: {{epochs: {epochs}, global_batch: 32, optimizer: sgd, schedule: constant,
           learning_rate: 0.05, train_samples: {images}, test_samples: 50, warmup_steps: 0}}
models:
{textwrap.indent(models.strip(), "  ")}
variants:
{textwrap.indent(variants.strip(), "  ")}
tables:
  - {{title: All, variants: [{names}], metrics: [test_accuracy, train_seconds]}}
"""


def add_pairs(monkeypatch, folder: Path, pairs: str, study: str = "laharsh-cpu") -> None:
    """Plan from a copy of the studies in ``folder``, with ``pairs`` (YAML) put into ``study``."""
    for part in ("studies", "containers"):
        shutil.copytree(ROOT / part, folder / part)
    shutil.copy(ROOT / "config.yaml", folder)
    path = folder / "studies" / f"{study}.yaml"
    rest = re.sub(r"^pairs:\n(  .*\n)+", "", path.read_text(), flags=re.M)
    path.write_text(f"{rest}\npairs: {pairs}\n")
    monkeypatch.setattr("parbench.plan.places.ROOT", folder)


class Workspace:
    """A copy of the project's files in ``folder``, with its own results.

    Cells run on the host unless ``deployment`` says otherwise, so tests that need no image do the
    same on every machine. Slices of pairs are short: beside other tests timings mean nothing.
    ``python``: runs all programs.
    """

    def __init__(self, folder: Path, deployment: str = "host", python: str | Path = sys.executable):
        self.folder, self.python = folder, str(python)
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            source, target = ROOT / part, folder / part
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, target, ignore=ignored, dirs_exist_ok=True)
            else:
                shutil.copy2(source, target)
        shutil.copytree(
            ROOT / "reports",
            folder / "reports",
            ignore=shutil.ignore_patterns("final.*", "evidence*"),
        )
        self.edit("config.yaml", "deployment: auto", f"deployment: {deployment}")
        self.edit(
            "scripts/parbench/launch/interleaving.py", "SLICE_SECONDS = 1.0", "SLICE_SECONDS = 0.25"
        )

    def run(
        self, *words: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess:
        """Run ``python`` with arguments ``words`` in the copy."""
        result = subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        if check and result.returncode != 0:
            raise AssertionError(
                f"{words} ended with {result.returncode}:\n{result.stdout}{result.stderr}"
            )
        return result

    def parbench(self, *words: str, check: bool = True, **environment: str):
        """Run a command of the copy."""
        return self.run("scripts/bin/parbench", *words, check=check, **environment)

    def snakemake(self, *words: str, check: bool = True, **environment: str):
        """Run Snakemake in the copy."""
        return self.run("-m", "snakemake", *words, check=check, **environment)

    def jobs(self, *words: str, **environment: str) -> dict[str, int]:
        """Return the number of jobs per rule in a dry run; empty if nothing is to be done."""
        result = self.snakemake("-n", *words, "--quiet", "host", **environment)
        counts = re.findall(r"^(\w+) +(\d+)$", result.stdout + result.stderr, re.M)
        return {name: int(number) for name, number in counts if name not in ("total", "all")}

    def copied(self, folder: Path) -> Workspace:
        """Return a copy, results included, in ``folder``."""
        shutil.copytree(self.folder, folder, symlinks=True)
        work = copy.copy(self)
        work.folder = folder
        return work

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace the first ``old`` in ``file``, which must be there, by ``new``."""
        path = self.folder / file
        text = path.read_text()
        assert old in text, f"{old!r} is not in {file}"
        path.write_text(text.replace(old, new, 1))
