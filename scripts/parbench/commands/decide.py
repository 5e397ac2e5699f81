"""Add restarts and seeds until all comparisons are decided or the minutes are used up.

    parbench decide --minutes 60
    parbench decide --check        # in CI: status 1 if a claim fails or is undecided

First it measures what is missing. Then it adds restarts and seeds to what these can decide in the
time left, the quickest first: comparisons of times, claims, and numbers with published values.
results/restarts.json records how many each has; the next `parbench report` shows the results. The
verdicts are valid although they are looked at after each restart (docs/verdicts.md).
"""

import argparse

from parbench.arguments import add_config, add_configfile, duration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the time limit and the configuration."""
    parser.set_defaults(snakemake=())
    parser.allow_abbrev = False  # Snakemake has options of its own that begin alike
    parser.add_argument(
        "--minutes",
        type=duration,
        help="time limit, by the forecast of what is measured next (default: 60)",
    )
    add_configfile(parser)
    add_config(parser, "overrides both")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--report",
        action="store_true",
        help="use `budget_minutes` of the configuration, then write the report again, as the end "
        "of `parbench report` does; takes the same arguments for Snakemake",
    )
    either.add_argument(
        "--check",
        action="store_true",
        help="measure nothing; exit with 1 if a claim is refuted, impossible, contradicted by its "
        "source, or undecided, or if cells are missing",
    )


def run(options: argparse.Namespace) -> int | None:
    """Decide; with --check, return 1 if a claim does not hold."""
    from parbench.errors import ParbenchError
    from parbench.workflow import deciding

    if options.minutes is not None and (options.check or options.report):
        raise ParbenchError("--minutes: remove it, since --check and --report do not use it")
    words = list(options.snakemake)
    if options.report:
        words += ["--configfile", *map(str, options.configfile)] if options.configfile else []
        words += ["--config", *options.config] if options.config else []
        deciding.decide_for_report(words)
        return None
    if words:
        raise ParbenchError(f"unknown arguments: {' '.join(words)}")
    if options.check:
        return deciding.check(options.configfile, options.config)
    minutes = 60 if options.minutes is None else options.minutes
    deciding.decide(minutes, options.configfile, options.config)
    return None
