"""``at TEXT SIGNAL [TEXT SIGNAL …] -- command …`` and ``terminal COLUMNS command …``, run by a bare Python."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios


def at(words: list[str]) -> int:
    """Send a command a signal each time it has printed the next text; what it prints is passed on."""
    middle = words.index("--")
    awaited = list(zip(words[0:middle:2], words[1:middle:2], strict=True))
    child = subprocess.Popen(words[middle + 1 :], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert child.stdout is not None
    seen = ""
    while chunk := os.read(child.stdout.fileno(), 65536):
        seen += chunk.decode(errors="replace")
        os.write(1, chunk)
        while awaited and awaited[0][0] in seen:
            child.send_signal(getattr(signal, f"SIG{awaited.pop(0)[1]}"))
    code = child.wait()
    if awaited:
        os.write(2, f"never printed: {awaited[0][0]}\n".encode())
    return code if code >= 0 else 128 - code


def terminal(words: list[str]) -> int:
    """Run a command on a terminal so many columns wide; what it draws is passed on."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, int(words[0]), 0, 0))
    child = subprocess.Popen(words[1:], stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the last of those that had it open has closed it
            break
        os.write(1, chunk)
    code = child.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit({"at": at, "terminal": terminal}[os.path.basename(sys.argv[0])](sys.argv[1:]))
