"""Write one archive for a machine without network: checkout, images, data and packages.

    parbench bundle                                            # parbench-<version>.tar, here
    parbench bundle --out /media/disk/x.tar --configfile mine.yaml
    parbench bundle --bare --configfile mine.yaml              # for a machine that has torch

The archive holds the commit that is checked out, the images, converted datasets and published
weights of the configured studies, and a wheel for every package of the host environment, for this
Python and platform. What does not exist yet is made first; the archive is renamed when complete.
"""

import argparse

from parbench.arguments import add_configfile, duration
from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to pack, and the archive to write."""
    parser.add_argument("--out", type=user_path, help="default: parbench-<version>.tar, here")
    add_configfile(parser, "committed files that override config.yaml")
    parser.add_argument(
        "--bare",
        action="store_true",
        help="for measuring on a machine that has torch, torchvision, numpy, pandas and matplotlib",
    )
    parser.add_argument(
        "--most-mib", type=duration, default=60, help="largest size of a bare archive (default: 60)"
    )
    parser.add_argument("--environment", default="current", help="stack of the host environment")


def run(options: argparse.Namespace) -> None:
    """Write the archive."""
    from parbench.workflow import packing

    packing.write(
        options.out, options.configfile, options.environment, options.bare, options.most_mib
    )
