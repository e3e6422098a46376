"""Disks, memory and files that run out while a run is at work."""

from __future__ import annotations

from tests.attacks.attack import Attack, fails, goes_on, refused

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
    *(
        refused(
            f"{key} beyond all sense", f"esper.train $tiny {key}={10**20}", f"{key} must be at most {most}, got 1000"
        )
        for key, most in (
            ("policy.lstm_dim", 10**9),
            ("env.num_epochs", 10**9),
            ("trainer.num_steps", 10**9),
            ("ppo.update_epochs", 10**9),
            ("task.batch_size", 10**6),
            ("instances.num_train", 10**5),
        )
    ),
    refused(
        "a host wider than there are numbers",
        f"esper.train $tiny 'host.widths=[{10**20},8,8]'",
        r"host.widths\[0\] must be at most",
    ),
    Attack(
        name="a job of a sweep that is too big for this machine",
        bash="esper.train -m $tiny 'host.widths=[8,8,8],[400000,400000,400000]'",
        says="job 1, .*refused.*out of memory .*lower trainer.num_envs",
        code=1,
        runs={"multirun/*/widths_8*": "finished"},
        where="both",
    ),
    goes_on("no folder for temporary files", "TMPDIR=/nowhere/at/all esper.train $tiny"),
    goes_on("no home", "HOME=/dev/null/home XDG_CACHE_HOME= ESPER_CACHE_DIR= esper.train $tiny env.mapping=auto"),
    goes_on("a cache that cannot be written", "ESPER_CACHE_DIR=/dev/null/x esper.train $tiny env.mapping=auto"),
    goes_on("a cache of others", "ESPER_CACHE_DIR=cache esper.train $tiny env.mapping=auto", files={"cache": "a file"}),
]
