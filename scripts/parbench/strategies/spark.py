"""Inference with Spark: executors predict the test set, each with a copy of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from parbench.cell import TUNING
from parbench.strategies import _base

if TYPE_CHECKING:
    from parbench.software import Software


class Strategy(_base.Strategy):
    """One process, the driver, for which the Python workers of executors predict.

    The device's threads are the total number of cores of all executors.
    """

    IMAGE = TEXT_IMAGE = "spark"
    ENGINE = "spark_inference"
    REFUSES: ClassVar[dict[str, str]] = dict.fromkeys(
        TUNING, "Spark's workers predict with a plain copy of the model"
    )
    OPTIONS: ClassVar[dict[str, dict]] = {
        "cluster": {
            "type": "boolean",
            "default": False,
            "description": "whether to use executors of the cluster that spark.master in "
            "config.yaml names; if not, this process runs one itself (local[cores])",
        },
        "executors": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "number of executors on the cluster, which divide the cores evenly",
        },
        "partitions": {
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "description": "partitions of the test set per core; a task predicts one partition",
        },
    }

    def check(self) -> Iterator[str]:
        """Require trained_by, tensor input, one CPU device, and executors that divide its cores
        evenly."""
        hardware, executors = self.cell.hardware, self.options.get("executors", 1)
        if self.cell.trained_by is None:
            yield "spark only runs inference; set trained_by to the variant that does the training"
        if (kind := self.cell.training.input) != "tensor":
            yield f"spark's workers do not support input: {kind}; remove it"
        if hardware.device != "cpu" or hardware.devices * hardware.nodes != 1:
            yield "spark runs on one CPU device; choose hardware with device: cpu, devices: 1"
        if executors > 1 and not self.options.get("cluster"):
            yield f"executors {executors} needs a cluster; set cluster: true, or remove executors"
        if hardware.threads % executors:
            yield (
                f"executors {executors} cannot divide {hardware.threads} cores evenly; choose a "
                f"divisor of {hardware.threads}"
            )

    def unavailable(self, software: Software) -> str | None:
        """Return which of the cluster, Spark and Java is missing; None if none is."""
        if self.options.get("cluster") and self.cell.run.spark_master is None:
            return "needs a Spark cluster: spark.master in config.yaml (docs/spark.md)"
        return software.without_spark()

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield nothing, as there is no training that could differ from eager training."""
        yield from ()
