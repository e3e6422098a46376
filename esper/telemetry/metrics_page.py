"""``docs/metrics.md``, from the table in :mod:`esper.telemetry.catalogue` and the detectors' limits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from esper.telemetry.anomalies import AnomalyLimits
from esper.telemetry.catalogue import PLACEHOLDERS, SECTIONS, Section

HEAD = """# Metrics

`metrics.jsonl` in a run folder has one line per iteration: `iteration`, then these, sorted by name. `null` is "not
measured", which is not zero. With W&B the same names are logged against `iteration`. Made from
`esper/telemetry/catalogue.py` by `make docs`; a test compares it with what runs write.
"""


def page() -> str:
    """The whole page in Markdown."""
    return "\n".join(
        [HEAD, *_placeholders(), *(line for section in SECTIONS for line in _section(section)), _anomalies()]
    )


def _placeholders() -> Iterator[str]:
    yield "In names, `<family>` is a host family of `instances.families`, and\n"
    for name, values in PLACEHOLDERS.items():
        if values is not None:
            yield f"- `<{name}>` is one of {', '.join(values)}"
    yield ""


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}\n\n{section.text}\n"
    yield "| name | meaning | formula | unit | healthy |\n|---|---|---|---|---|"
    for metric in section.metrics:
        cells = (f"`{metric.name}`", metric.meaning, metric.formula, metric.unit, metric.healthy)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""


def _anomalies() -> str:
    limits = AnomalyLimits()
    rows = (
        ("non_finite", "a metric is NaN or infinite, or minibatches were skipped because loss or gradient was"),
        ("ratio_explosion", f"a probability ratio is above {limits.max_ratio:g} or below {limits.min_ratio:g}"),
        ("entropy_collapse", f"normalised entropy of a head is below {limits.min_entropy:g}"),
        (
            "value_collapse",
            f"explained variance is below {limits.min_explained_variance:g} after the first "
            f"{limits.value_start} iterations",
        ),
        ("gradient_norm", f"the gradient norm before clipping is above {limits.max_gradient_norm:g}"),
        (
            "accuracy_drop",
            f"final val accuracy, over that of the twins, is {limits.max_accuracy_drop:g} below its mean over the last "
            f"{limits.accuracy_window} iterations",
        ),
    )
    table = "\n".join(f"| `{name}` | {when} |" for name, when in rows)
    return f"""## Anomalies

Events of kind `anomaly` in `events.jsonl`, at most one of each name per iteration, counted in the terminal. Each raises
telemetry to `debug`, one `last_action` event per action, for `telemetry.escalation_iterations` iterations; then it
falls back. `telemetry.level=off` stays off.

| anomaly | when |
|---|---|
{table}

A ratio explosion also leaves a `ratio_explosion` event for each minibatch, with the worst actions: environment, step,
head, op, old and new log-probability, advantage and ratio.
"""


def main() -> None:
    """Write the page to the path that is given."""
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
