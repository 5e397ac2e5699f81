"""Fixtures that several test files share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """The converted digits dataset, made once by the project's own program."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts/dataset.py"),
            "--name=digits",
            '--spec={"kind": "digits"}',
            f"--out={folder / 'data.safetensors'}",
            f"--digest={folder / 'digest.json'}",
        ],
        check=True,
        capture_output=True,
    )
    return folder
