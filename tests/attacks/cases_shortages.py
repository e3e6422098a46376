"""Disks, memory and files that run out while a run is at work."""

from __future__ import annotations

from tests.attacks.attack import fails, goes_on

FAILED = {"outputs/x": "failed"}

ATTACKS = [
    *(
        fails(f"no file above {size} KiB", f"ulimit -f {size}; esper.train $tiny name=x", "outputs/x .File too large")
        for size in (4, 20)
    ),
    fails("no file above 100 KiB", "ulimit -f 100; esper.train $tiny name=x", "File too large", runs=FAILED),
    fails(
        "no file above 100 KiB for two ranks",
        "ulimit -f 100; esper.train $tiny name=x devices=[cpu,cpu]",
        "File too large",
        runs=FAILED,
    ),
    fails(
        "a disk that fills with events",
        "mkdir -p outputs/x; ln -s /dev/full outputs/x/events.jsonl; esper.train $tiny name=x",
        "No space left on device",
        runs=FAILED,
    ),
    fails(
        "a policy of 16 terabytes",
        "esper.train $tiny name=x policy.lstm_dim=1000000",
        "out of memory .*16000000000000",
        runs=FAILED,
    ),
    fails(
        "hosts of 360 gigabytes",
        "esper.train $tiny host.widths=[100000,100000,100000]",
        "out of memory .*360000000000",
    ),
    goes_on("no folder for temporary files", "TMPDIR=/nowhere/at/all esper.train $tiny"),
    goes_on("no home", "HOME=/dev/null/home XDG_CACHE_HOME= ESPER_CACHE_DIR= esper.train $tiny env.mapping=auto"),
    goes_on("a cache that cannot be written", "ESPER_CACHE_DIR=/dev/null/x esper.train $tiny env.mapping=auto"),
    goes_on("a cache of others", "ESPER_CACHE_DIR=cache esper.train $tiny env.mapping=auto", files={"cache": "a file"}),
]
