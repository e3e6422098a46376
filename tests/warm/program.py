"""A command of Esper's, handed to the warm interpreter: ``esper.train …`` means ``python -m esper.train …``.

Run by a bare Python, under the names of the commands. It passes on its streams, environment, folder, limits and
signals, and ends as the process that does the work ends. With nothing but the standard library it starts at once.
"""

import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
SLOW_TO_IMPORT = (
    "esper.",
    "benchmarks.",
    "examples.",
    "tests.",
    "torch.distributed.run",
    "submitit.core._submit",
    "joblib.externals.loky.",
)
LIMITS = ("RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_CPU")


def main(folder: str, python: str) -> None:
    """Have a process of the interpreter in a folder do what this one was started for, or be an interpreter."""
    name = os.path.basename(sys.argv[0])
    words = sys.argv[1:]
    if name == "python":
        name, words = module(words)
        if name is None:
            os.execv(python, [python, *sys.argv[1:]])
    mask = os.umask(0)
    os.umask(mask)
    descriptors = [number for number in map(int, os.listdir("/proc/self/fd")) if is_open(number)]
    order = {
        "module": name,
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "ignored": [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN],
        "umask": mask,
        "pid": os.getpid(),
        "descriptors": descriptors,
    }
    heard: list[int] = []
    process = 0

    def pass_on(number: int, frame: object) -> None:
        if process:
            os.kill(process, number)
        else:
            heard.append(number)

    for number in PASSED_ON:
        if number not in order["ignored"]:
            signal.signal(number, pass_on)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as interpreter:
        interpreter.connect(f"{folder}/socket")
        socket.send_fds(interpreter, [json.dumps(order).encode()], descriptors)
        process = int(interpreter.recv(100))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in descriptors:  # so that a pipe closes when the process that does the work lets go of it
            os.dup2(nothing, number)
        for number in heard:
            os.kill(process, number)
        status = int(interpreter.recv(100))
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if os.WTERMSIG(status) != signal.SIGKILL:  # which needs no handler, and allows none
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def module(words: list[str]) -> tuple[str | None, list[str]]:
    """The module that an interpreter is told to run, if that takes long to import, and its words."""
    if words[:1] == ["-u"]:
        words = words[1:]
    if words[:1] == ["-m"] and words[1:] and words[1].startswith(SLOW_TO_IMPORT):
        return words[1], words[2:]
    return None, words


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
