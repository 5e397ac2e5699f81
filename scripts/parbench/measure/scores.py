"""Compute the scores of predictions on a test set."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from parbench.measure.metrics_types import ScoresJson

# For a run that was not tested.
NO_SCORES: ScoresJson = {
    "test_accuracy": None,
    "test_precision_macro": None,
    "test_recall_macro": None,
    "test_f1_macro": None,
    "test_specificity_macro": None,
    "confusion": [],
}


def classification(truth: np.ndarray, predicted: np.ndarray, classes: int) -> ScoresJson:
    """Return accuracy, macro precision, recall, F1 and specificity, and the confusion matrix.

    ``truth`` and ``predicted`` are integer arrays [N]; rows of the matrix are true classes.
    Specificity of a class is the recall of "not this class". A ratio x/0 counts as 0.
    """
    import numpy as np

    counts = np.bincount(truth * classes + predicted, minlength=classes**2)
    confusion = counts.reshape(classes, classes)
    right, actual, guessed = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    others = len(truth) - actual

    def mean_share(part: np.ndarray, whole: np.ndarray) -> float:
        return float(np.mean(part / np.maximum(whole, 1)))

    return {
        "test_accuracy": float(right.sum() / len(truth)),
        "test_precision_macro": mean_share(right, guessed),
        "test_recall_macro": mean_share(right, actual),
        "test_f1_macro": mean_share(2 * right, actual + guessed),
        "test_specificity_macro": mean_share(others - guessed + right, others),
        "confusion": confusion.tolist(),
    }
