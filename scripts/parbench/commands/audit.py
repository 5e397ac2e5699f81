"""Find contradictions between published numbers, and between them and their source's claims.

    parbench audit studies/published/published_results.csv
    parbench audit paper.md --columns "Model=model, GPUs=devices, img/s=samples_per_second" \\
        --given "hardware=V100, strategy=ddp"

Nothing is trained. Claims are those of claims.yaml beside the file. docs/audit.md says what each
finding means, and what a table may contain.
"""

import argparse

from parbench.files import user_path

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, the meaning of its columns, and what it does not state."""
    parser.add_argument(
        "file", type=user_path, help="published values, one per row; with --columns any table"
    )
    parser.add_argument(
        "--columns",
        help="the columns to read of a table as printed (Markdown, plain text, CSV), such as "
        '"Model=model, GPUs=devices, img/s=samples_per_second"',
    )
    parser.add_argument(
        "--given", help='what the table does not say, such as "hardware=V100, strategy=ddp"'
    )
    parser.add_argument("--classes", type=int, help="number of classes (default: 10)")
    parser.add_argument(
        "--train-samples", type=int, help="samples of the training set (default: 50000)"
    )
    parser.add_argument(
        "--unbalanced",
        action="store_true",
        help="test classes differ in size, so scores are not checked",
    )


def run(options: argparse.Namespace) -> None:
    """Print the findings."""
    from parbench.audit import checks
    from parbench.audit.arithmetic import DatasetAssumptions
    from parbench.errors import ParbenchError

    usual = DatasetAssumptions()
    classes = usual.classes if options.classes is None else options.classes
    samples = usual.train_samples if options.train_samples is None else options.train_samples
    if classes < 2 or samples < 1:
        raise ParbenchError("--classes must be at least 2, --train-samples at least 1")
    assumptions = DatasetAssumptions(classes, samples, not options.unbalanced)
    checks.audit(options.file, assumptions, options.columns, options.given)
