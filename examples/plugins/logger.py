"""A logger that keeps the best return so far in `best.txt`. Select it by `telemetry.loggers=[best]`."""

from esper.runtime.records import Metrics
from esper.telemetry.hub import Logger
from esper.telemetry.loggers import LoggedRun, register_logger


class Best(Logger):
    name = "best"

    def __init__(self, run: LoggedRun) -> None:
        self.path, self.best = run.folder / "best.txt", float("-inf")

    def metrics(self, iteration: int, metrics: Metrics) -> None:
        self.best = max(self.best, metrics.get("charts/episodic_return") or self.best)
        self.path.write_text(f"{self.best}\n")


register_logger("best", Best)
