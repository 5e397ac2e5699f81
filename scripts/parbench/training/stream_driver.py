"""Drive a streaming query, which predicts files as they arrive, until this process is ended.

If it is started again, it resumes from Spark's checkpoint: each file's result is committed once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from parbench.cell import Cell
from parbench.files import write_atomically, write_json
from parbench.training import launched, spark_inference, spark_worker, stream_producer

FILES = "path string, modificationTime timestamp, length long, content binary"
WARM = -1_000_000  # ids of warm-up images count down from here


def main() -> None:
    """Predict the images that arrive in the folder given as the argument."""
    folder = Path(sys.argv[1])
    launched.begin()
    description = json.loads((folder / "stream.json").read_text())
    predictor = spark_worker.Predictor(**description["predictor"])
    began = time.perf_counter()
    session = spark_inference.start_session(Cell.of(predictor.cell))
    # Identifies the executors that may be killed.
    write_atomically(folder / "application", session.sparkContext.applicationId)
    seconds = time.perf_counter() - began
    spark_inference.send_to_executors(session, folder / spark_worker.WEIGHTS)
    # parbench reads the log while it grows, so no entry may be deleted.
    session.conf.set("spark.sql.streaming.fileSink.log.deletion", "false")
    files = session.readStream.format("binaryFile").schema(FILES).load(str(folder / "images"))
    predict_files = spark_worker.OfFiles(predictor, str(folder / "dead"))
    results = files.select("path", "content").mapInPandas(predict_files, "id long, predicted long")
    query = (
        results.writeStream.format("parquet")
        .option("path", str(folder / "results"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    if not (folder / "ready").exists():
        _warm_up(folder, predictor.shape, query)
        first = time.perf_counter() - began - seconds
        write_json(folder / "ready", {"session_seconds": seconds, "first_batch_seconds": first})
    query.awaitTermination()


def _warm_up(folder: Path, shape: list[int], query) -> None:
    """Let every worker load the model."""
    black = stream_producer.encoded(torch.zeros(*shape, dtype=torch.uint8))
    for number in range(4):
        stream_producer.renamed(folder, WARM - number, black)
    query.processAllAvailable()


if __name__ == "__main__":
    main()
