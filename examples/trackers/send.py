"""Send the series that the daemon exports (export.series) to MLflow or Weights & Biases, only what is new.

    pip install mlflow-skinny        # or wandb
    python send.py mlflow SERIES_FOLDER
    python send.py wandb SERIES_FOLDER

Each attempt of a job is a run. MLFLOW_TRACKING_URI, WANDB_API_KEY and the like say where it goes. How far each file was
sent stands beside it, in .sent-mlflow or .sent-wandb.
"""

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path

PROJECT = "uff-scheduler-training"
PLACE = ("attempt", "step", "at")  # of a point; the other columns are its figures


def send_to_mlflow(name: str, points: Sequence[dict[str, str]]) -> None:
    """Add the points to the run of this name, which is made where there is none."""
    import mlflow

    experiment = mlflow.set_experiment(PROJECT)
    where = f"attributes.run_name = '{name}'"
    known = mlflow.search_runs([experiment.experiment_id], where, output_format="list")
    with mlflow.start_run(run_id=known[0].info.run_id if known else None, run_name=name):
        for point in points:
            mlflow.log_metrics(figures(point), step=int(point["step"]))


def send_to_wandb(name: str, points: Sequence[dict[str, str]]) -> None:
    """Add the points to the run of this name, which is made where there is none."""
    import wandb

    run = wandb.init(project=PROJECT, id=name, name=name, resume="allow")
    for point in points:
        run.log(figures(point), step=int(point["step"]))
    run.finish()


def figures(point: dict[str, str]) -> dict[str, float]:
    """Return the finite figures of a point: trackers take no NaN."""
    values = {key: float(text) for key, text in point.items() if text and key not in PLACE}
    return {key: value for key, value in values.items() if math.isfinite(value)}


def main(tracker: str, folder: str) -> None:
    """Send each job's points in the order in which they were reported."""
    send = {"mlflow": send_to_mlflow, "wandb": send_to_wandb}[tracker]
    for file in sorted(Path(folder).glob("*/series.csv")):
        mark = file.with_name(f".sent-{tracker}")
        sent = mark.read_text() if mark.exists() else ""
        with file.open(newline="") as stream:
            points = [point for point in csv.DictReader(stream) if point["at"] > sent]
        for attempt in sorted({int(point["attempt"]) for point in points}):
            mine = [point for point in points if int(point["attempt"]) == attempt]
            send(f"{file.parent.name}-{attempt:04d}", mine)
        if points:
            mark.write_text(max(point["at"] for point in points))


if __name__ == "__main__":
    main(*sys.argv[1:])
