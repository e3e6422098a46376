"""Text: every token is a target once, with the token before it as input; splits are disjoint."""

from __future__ import annotations

import builtins
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esper.envs.instances import InstancePool, instance_data
from esper.tasks import IGNORED, TaskOptions, load_task, textbook, tinystories
from esper.tasks.bpe import encode, trained_encoding
from esper.tasks.data import Split
from esper.tasks.downloads import DataError
from esper.tasks.text import windows
from tests.tasks.archives import serving, source


def told(split: Split) -> bytes:
    """Return all targets that count, in order."""
    targets = split.targets.flatten()
    return bytes(targets[targets != IGNORED].tolist())


@given(st.lists(st.integers(0, 300), min_size=1, max_size=40), st.integers(1, 9))
def test_every_token_is_a_target_once_after_the_one_before_it(tokens: list[int], length: int) -> None:
    split = windows(torch.tensor(tokens), length)
    count = -(-len(tokens) // length)
    assert split.inputs.shape == split.targets.shape == (count, length)
    targets, inputs = split.targets.flatten().tolist(), split.inputs.flatten().tolist()
    assert targets == tokens + [IGNORED] * (count * length - len(tokens))
    assert inputs[: len(tokens)] == [0, *tokens[:-1]]
    assert split.num_targets().tolist()[:-1] == [length] * (count - 1)
    assert int(split.num_targets().sum()) == len(tokens)
    assert split.inputs.dtype == (torch.uint8 if max(tokens) < 256 else torch.int16)


def test_wide_vocabularies_are_stored_wide() -> None:
    split = windows(torch.tensor([70000, 3]), 2)
    assert split.inputs.dtype == split.targets.dtype == torch.int32
    with pytest.raises(ValueError, match="can't cut 0 tokens into windows of 4"):
        windows(torch.tensor([], dtype=torch.int64), 4)


def test_a_window_weighs_as_much_as_it_has_targets() -> None:
    task = load_task("synthetic_text", context_length=60)
    shape = {"host_family": "transformer", "num_blocks": 1, "num_classes": 32}
    [instance] = InstancePool.build({"intact": 1.0}, 1, "train", **shape)
    data = instance_data(task, instance)
    counts = task.test.num_targets().double()
    assert counts[-1] == 8192 % 60
    torch.testing.assert_close(data.test_weight.double(), counts / 8192)
    assert float(data.val_weight.sum()) == pytest.approx(1)


def test_text_is_read_as_whole_numbers() -> None:
    task = load_task("textbook")
    assert (task.kind, task.num_classes, task.context_length) == ("tokens", 256, 128)
    read = task.prepare(task.val.inputs[:2])
    assert read.dtype == torch.int64
    assert read.tolist() == task.val.inputs[:2].tolist()
    assert task.chance_accuracy == 1 / 256
    assert task.random_loss == pytest.approx(math.log(256))
    with pytest.raises(ValueError, match="task textbook has no images but tokens"):
        _ = task.in_channels


def test_the_textbook_is_cut_without_a_gap_and_repeats_no_paragraph() -> None:
    task = textbook.load(TaskOptions(num_val=100, context_length=64))
    text = b"".join(told(split) for split in (task.train, task.val, task.test))
    assert text == textbook.manual().encode()
    assert (len(told(task.val)), len(told(task.test))) == (6400, textbook.TEST_BYTES)
    paragraphs = text.decode().split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs) > 1000
    assert len(text) > 300_000
    assert task.version == textbook.load(TaskOptions()).version
    with pytest.raises(ValueError, match=r"task.num_val must be from 1 to \d+, in windows of 128 bytes; got 9999"):
        textbook.load(TaskOptions(num_val=9999))


STORIES = "Once upon a time there was a cat.\nIt sat — on a mat.\n<|endoftext|>\n"


def put_stories(folder: Path) -> tuple[bytes, bytes]:
    train, valid = (STORIES * 200).encode(), ("One day " + STORIES * 50).encode()
    (folder / "TinyStories-train.txt").write_bytes(train)
    (folder / "TinyStories-valid.txt").write_bytes(valid)
    return train, valid


def test_tinystories_are_read_byte_by_byte_from_the_users_folder(tmp_path: Path) -> None:
    train, valid = put_stories(tmp_path)
    task = tinystories.load(TaskOptions(root=tmp_path, num_val=8, context_length=32, verify=False))
    assert told(task.train) == train
    assert told(task.val) + told(task.test) == valid
    assert len(task.val) == 8
    with pytest.raises(DataError, match=r"TinyStories-valid.txt has 3\d+ bytes, of which 65536 are to validate"):
        tinystories.load(TaskOptions(root=tmp_path, verify=False))


def test_a_quick_trial_of_tinystories_needs_the_small_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    valid = bytes(range(32, 122)) * 20
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(tinystories, "TEST_BYTES", 320)
    monkeypatch.setattr(tinystories, "VALID", source(tinystories.VALID.name, valid))
    with serving({tinystories.VALID.name: valid}) as server:
        options = {"root": tmp_path, "url": server.url, "num_val": 8, "context_length": 32}
        task = load_task("tinystories", max_samples=10, **options)
    assert server.requests == [tinystories.VALID.name]
    texts = [bytes(split.targets.flatten().tolist()) for split in task.splits().values()]
    assert texts == [valid[256 + 320 :][:320], valid[:256], valid[256:][:320]]


def test_tinystories_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    train, valid = put_stories(tmp_path)
    files = {"TinyStories-train.txt": train, "TinyStories-valid.txt": valid}
    for name, content in (("TRAIN", train), ("VALID", valid)):
        monkeypatch.setattr(tinystories, name, source(getattr(tinystories, name).name, content))
    with serving(files) as server:
        task = tinystories.load(TaskOptions(root=tmp_path / "new", url=server.url, num_val=8, context_length=32))
        assert sorted(server.requests) == sorted(files)
    assert told(task.train) == train


def test_an_encoding_says_the_same_with_fewer_tokens_and_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "cache"))
    train, valid = put_stories(tmp_path)
    options = TaskOptions(root=tmp_path, num_val=8, context_length=32, vocab_size=300, verify=False)
    task = tinystories.load(options)
    [kept] = (tmp_path / "cache" / "encodings").iterdir()
    encoding = trained_encoding("tinystories", train, 300)
    targets = [split.targets[split.targets != IGNORED].tolist() for split in (task.train, task.val, task.test)]
    assert encoding.decode(targets[0], skip_special_tokens=False).encode() == train
    assert "".join(map(encoding.decode, targets[1:])).encode() == valid
    assert 257 < task.num_classes <= 300
    texts = train, valid[: 8 * 32], valid[8 * 32 :]
    for split, text, tokens in zip((task.train, task.val, task.test), texts, targets, strict=True):
        assert split.bits_per_byte(1.0) == pytest.approx(len(tokens) / len(text) / math.log(2))
    assert len(targets[0]) < len(train) / 2
    kept.write_text(kept.read_text().replace("\n", " "))
    before = kept.stat().st_mtime_ns
    assert torch.equal(tinystories.load(options).train.inputs, task.train.inputs)
    assert kept.stat().st_mtime_ns == before


def test_any_text_can_be_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path))
    encoding = trained_encoding("toy", STORIES.encode(), 270)
    strange = "Zürich \t\n\n日本\n" * 3
    tokens = encode(encoding, strange.encode()).tolist()
    assert encoding.decode(tokens) == strange
    assert 0 not in tokens, "the start is in no text"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tokenizers")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ESPER_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(
        ValueError, match=r"task.vocab_size=270: cannot keep .*file/encodings \(Not a directory\): name"
    ):
        trained_encoding("toy", STORIES.encode(), 270)


def test_without_the_library_an_encoding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"task.vocab_size=300 needs the package tokenizers: pip install"):
        trained_encoding("toy", b"text", 300)


def test_malformed_text_is_refused() -> None:
    tokens = torch.zeros(3, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"targets of text must be integers \[3, 4\].*not torch.int16 \[3, 3\]"):
        Split(tokens, torch.zeros(3, 3, dtype=torch.int16))
    with pytest.raises(ValueError, match=r"inputs of text must be integers.*torch.float32"):
        Split(tokens.float(), tokens.short())
    with pytest.raises(ValueError, match="every window of text must have a target"):
        Split(tokens, torch.full((3, 4), IGNORED, dtype=torch.int16))
