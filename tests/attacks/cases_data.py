"""Data sets that are missing, truncated, empty, or mislabelled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from esper.tasks import cifar10
from tests.attacks.attack import Attack, refused
from tests.tasks.archives import cifar_archive, idx

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IMAGES, LABELS = np.zeros((60, 28, 28), np.uint8), np.arange(60, dtype=np.uint8) % 10
WHOLE = dict(zip(NAMES, (idx(values, compressed=False) for values in (IMAGES, LABELS, IMAGES, LABELS)), strict=True))


def clothes(name: str, says: str, **changes: bytes) -> Attack:
    """Expect a refusal of Fashion-MNIST files; ``changes`` apply to one of them, by the start of its name."""
    files = {
        f"data/{name}": changes.get(name.partition("-idx")[0].replace("-", "_"), content)
        for name, content in WHOLE.items()
    }
    return refused(name, "esper.train $tiny host=fashion_small task=fashion_mnist task.root=data", says, files=files)


def given(name: str, words: str, says: str, files: Mapping[str, str | bytes], **more: object) -> Attack:
    """Expect a refusal of another data set's files; nothing can be downloaded here."""
    command = f"esper.train task.url=http://127.0.0.1:9 task.root=data {words}"
    return refused(name, command, says, files=files, runs={}, **more)


ATTACKS = [
    clothes("clothes that are few and black", "fashion_mnist.*"),
    clothes("clothes of no image", "train-images-idx3-ubyte", train_images=b""),
    clothes("clothes of half an image", "train-images-idx3-ubyte", train_images=WHOLE[NAMES[0]][:1000]),
    clothes("clothes of text", "train-images-idx3-ubyte", train_images=b"hello"),
    clothes("clothes with labels for images", "train-images-idx3-ubyte", train_images=WHOLE[NAMES[1]]),
    given("pictures nowhere", "$tiny task=cifar10", "task cifar10: http://127.0.0.1:9/.* cannot be downloaded", {}),
    given(
        "pictures of half an archive",
        "$tiny task=cifar10",
        "cifar",
        {"data/cifar-10-python.tar.gz": cifar_archive(cifar10.PYTHON)[:2000]},
    ),
    given(
        "pictures of another archive",
        "$tiny task=cifar10",
        "cifar",
        {"data/cifar-10-python.tar.gz": cifar_archive(cifar10.PYTHON)},
    ),
    given("pictures of text", "$tiny task=cifar10", "cifar", {"data/cifar-10-python.tar.gz": "hello"}),
    given(
        "stories of nothing",
        "+preset=tinystories +debug=fast",
        "tinystories|TinyStories",
        {"data/TinyStories-train.txt": "", "data/TinyStories-valid.txt": ""},
    ),
    given(
        "stories of bytes",
        "+preset=tinystories +debug=fast",
        "tinystories|TinyStories",
        {"data/TinyStories-train.txt": b"\xff\x00" * 90, "data/TinyStories-valid.txt": b"\xff"},
    ),
    given(
        "a mirror of no protocol", "$tiny task=cifar10 task.url=nope", "task cifar10: nope/.* cannot be downloaded", {}
    ),
    refused("text for images", "esper.train $tiny task=textbook", "textbook"),
    refused("no samples", "esper.train $tiny task.max_samples=0", "task.max_samples must be at least 1, got 0"),
    refused("no batch", "esper.train $tiny task.batch_size=0", "task.batch_size must be at least 1, got 0"),
]
