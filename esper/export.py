"""Export a network that a run has grown: ``python -m esper.export run=outputs/<run> host=best out=<folder>``."""

from __future__ import annotations

import argparse

from esper.launch.begin import start

WORDS = """\
run=<folder>     a finished training run
host=best        the held-out host of highest validation accuracy that kept a module, or host=<number>
format=<form>    torch_export (model.pt2), onnx (model.onnx), source (model.py), or a list [onnx,source]
out=<folder>     where to write, new or empty

exit codes: 0 exported, 1 it failed, 2 the request cannot be met
"""


def main() -> None:
    """Compose the configuration from the command line, check it, and export the network."""
    # Imported here, so that the process handles signals before slow imports.
    from esper.config.errors import refused
    from esper.config.export import ExportConfig
    from esper.config.store import from_words
    from esper.launch.cli import one_line_errors
    from esper.runtime.preemption import StopSignals

    parser = argparse.ArgumentParser(
        prog="python -m esper.export",
        description="Write a network that a run has grown in forms that need no Esper.",
        epilog=WORDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="key=value")
    words = parser.parse_args().words
    with StopSignals(), one_line_errors(), refused(ExportConfig):
        unread = [word for word in words if "=" not in word]
        if unread:
            raise ValueError(f"cannot read {unread[0]!r}: say key=value")
        config = from_words(words, ExportConfig)
        from esper.exporting.run import check, export

        check(config)
        export(config)


if __name__ == "__main__":
    raise SystemExit(start("esper.export"))
