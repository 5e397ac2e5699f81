"""What the predictions of a test set are worth."""

from __future__ import annotations

from typing import Any

# Of a run that was not tested.
NO_SCORES: dict[str, Any] = {
    "test_accuracy": None,
    "test_precision_macro": None,
    "test_recall_macro": None,
    "test_f1_macro": None,
    "test_specificity_macro": None,
    "confusion": [],
}


def classification(truth: Any, predicted: Any, classes: int) -> dict:
    """Accuracy, macro precision, recall, F1 and specificity, and the confusion matrix.

    ``truth`` and ``predicted`` are integer arrays [N]; rows of the matrix are true classes.
    Specificity of a class is the recall of "not this class".
    """
    from sklearn import metrics

    labels = list(range(classes))
    precision, recall, f1, _ = metrics.precision_recall_fscore_support(
        truth, predicted, labels=labels, average="macro", zero_division=0
    )
    specificity = [
        metrics.recall_score(truth == label, predicted == label, pos_label=False, zero_division=0)
        for label in labels
    ]
    return {
        "test_accuracy": float(metrics.accuracy_score(truth, predicted)),
        "test_precision_macro": float(precision),
        "test_recall_macro": float(recall),
        "test_f1_macro": float(f1),
        "test_specificity_macro": float(sum(specificity) / classes),
        "confusion": metrics.confusion_matrix(truth, predicted, labels=labels).tolist(),
    }
