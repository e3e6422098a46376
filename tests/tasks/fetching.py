"""A process that fetches a file: ``python -m tests.tasks.fetching <source as JSON> <folder> <url>``."""

import json
import signal
import sys
from pathlib import Path

from esper.tasks.downloads import Source, fetch

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    fetch("toy", Source(**json.loads(sys.argv[1])), Path(sys.argv[2]), sys.argv[3])
