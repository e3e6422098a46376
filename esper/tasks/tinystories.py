"""TinyStories: short stories in the words of small children (Eldan and Li 2023, arXiv:2305.07759)."""

from __future__ import annotations

from esper.tasks.data import TaskData
from esper.tasks.downloads import DataError, Source, fetch
from esper.tasks.folders import data_folders, find
from esper.tasks.options import TaskOptions
from esper.tasks.published import require_file
from esper.tasks.text import Texts, text_task

NAME = "tinystories"
VERSION = 1
CONTEXT_LENGTH = 256
NUM_VAL = 256
TEST_BYTES = 1 << 18
TRAIN_BYTES = 1 << 26
"""Bytes of the training stories to read, 64 MiB: far more than small hosts see, and held in device memory."""

_URL = "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main"
TRAIN = Source(
    name="TinyStories-train.txt",
    url=_URL,
    size=1924281556,
    hash="sha256:c5cf5e22ff13614e830afbe61a99fbcbe8bcb7dd72252b989fa1117a368d401f",
)
VALID = Source(
    name="TinyStories-valid.txt",
    url=_URL,
    size=19447282,
    hash="sha256:94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
)


def load(options: TaskOptions) -> TaskData:
    """Load raw text from the user's folder, or download it.

    The published validation stories give val, then test. Only the beginnings of both files are read; without
    ``options.verify`` only these need to exist. A quick trial (``options.max_samples``, bytes) trains on the published
    validation stories that follow, if they suffice, and needs no other file.

    Raises:
        DataError: a file cannot be obtained, differs from the published one, or is too short.
    """
    length = options.context_length or CONTEXT_LENGTH
    num_val = (options.num_val or NUM_VAL) * length
    used = num_val + TEST_BYTES
    few = used + (options.max_samples or VALID.size) * length
    if options.verify and options.vocab_size is None and few <= VALID.size:
        valid = _read(VALID, few, options)
        valid, train = valid[:used], valid[used:]
    else:
        train, valid = _read(TRAIN, TRAIN_BYTES, options), _read(VALID, used, options)
    if len(valid) <= num_val or len(train) < length:
        raise DataError(
            f"task {NAME}: {VALID.name} has {len(valid)} bytes, of which {num_val} are to validate and more to test, "
            f"and {TRAIN.name} has {len(train)}: provide more, or use task.num_val=<fewer>"
        )
    texts = Texts(train=train, val=valid[:num_val], test=valid[num_val:])
    return text_task(NAME, VERSION, texts, length, options.vocab_size)


def _read(source: Source, count: int, options: TaskOptions) -> bytes:
    """Read the first bytes of a file."""
    folders = data_folders(NAME, options)
    path = find(folders, source.name) or fetch(NAME, source, folders[0], options.url)
    require_file(NAME, options, path, source)
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise DataError(f"task {NAME}: cannot read {path} ({error.strerror})") from None
