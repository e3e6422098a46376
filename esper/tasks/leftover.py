"""What a download that broke off has left, and how the next one goes on from there.

The rest is asked for with ``Range`` and ``If-Range`` (RFC 9110, sections 13.1.5 and 14.2): a server whose file has
changed meanwhile, or that gives no parts, answers with the whole file, which then replaces what was there. Whether the
pieces make the published file is for its hash to say.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from requests import Response


class Leftover:
    """The first bytes of a file, in a folder that outlives the process.

    Attributes:
        folder: where they are.
        content: the bytes.
        mark: what tells the file from later ones of that name: a strong ``ETag``, or a ``Last-Modified``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.content, self.mark = folder, folder / "content", folder / "mark"

    def prepare(self, *others: str) -> None:
        """Make the folder, and remove from it all but this and ``others``: a killed process may have left anything."""
        self.folder.mkdir(exist_ok=True)
        for path in self.folder.iterdir():
            if path.name not in (self.content.name, self.mark.name, *others):
                path.unlink()

    def validator(self) -> str | None:
        """The mark, where it can be sent."""
        text = self.mark.read_text(encoding="latin-1") if self.mark.exists() else ""
        return text if text.isascii() and text.isprintable() and text else None

    def size(self) -> int:
        """Bytes with which a download can go on; 0 if there is no telling what they are of."""
        return self.content.stat().st_size if self.validator() and self.content.exists() else 0

    def set_mark(self, text: str | None) -> None:
        """Say of which file the bytes to come are; of ``None``, they are worth nothing after a break."""
        self.mark.unlink(missing_ok=True)
        if text is not None:
            self.mark.write_text(text, encoding="latin-1")

    def drop(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)


class NotTheRest(Exception):
    """The server answered with something that does not continue what is there."""


class ResumingDownloader:
    """A downloader for ``pooch`` that takes up what an earlier one has left.

    Args:
        leftover: what there is. It is moved to where pooch wants the whole, so pooch removes it if its hash is wrong.
        size: of the whole file, in bytes.
        begins: called with the number of bytes that are there when the others begin to come.
        options: of :class:`pooch.HTTPDownloader`.

    Attributes:
        resumed: bytes of an earlier download are part of what was made last.
    """

    def __init__(self, leftover: Leftover, size: int, begins: Callable[[int], None], **options: Any) -> None:
        self.leftover, self.size, self.begins, self.options = leftover, size, begins, options
        self.resumed = False

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        """Make the whole file. Raises what ``requests`` raises; what has come until then stays."""
        try:
            self._get(url, self.leftover.size())
        except NotTheRest:
            self._get(url, 0)
        os.replace(self.leftover.content, output_file)

    def _get(self, url: str, start: int) -> None:
        import pooch
        import requests

        self.resumed = start > 0
        if start == self.size:
            return  # all there: the process was killed before it could say so
        # Bytes are counted, so they are to come as they are stored.
        headers = {"Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", "If-Range": self.leftover.validator() or ""}
        with self.leftover.content.open("ab") as file:
            hooks = {"response": lambda response, **_: self._answered(response, start, file)}
            get = pooch.HTTPDownloader(headers=headers, hooks=hooks, **self.options)
            try:
                get(url, file, None)
            except requests.HTTPError as error:
                if start and error.response is not None and error.response.status_code == 416:
                    raise NotTheRest from None
                raise

    def _answered(self, response: Response, start: int, file: BinaryIO) -> None:
        """Before the first byte: go on, or begin anew."""
        if not response.ok or response.is_redirect:
            return
        if start and response.status_code == 206:
            if not self._continues(response, start):
                response.close()
                raise NotTheRest
        else:
            self.resumed, start = False, 0
            file.truncate(0)
            self.leftover.set_mark(_mark(response))
        self.begins(start)

    def _continues(self, response: Response, start: int) -> bool:
        """Whether the answer is what was asked for; there are servers that do not know ``If-Range``."""
        validator = self.leftover.validator()
        name = "ETag" if validator and validator.startswith('"') else "Last-Modified"
        right = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        return right and response.headers.get(name, validator) == validator


def _mark(response: Response) -> str | None:
    """What tells this file from later ones; nothing if its bytes come packed, and cannot be counted."""
    if response.headers.get("Content-Encoding", "identity") != "identity":
        return None
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified")
