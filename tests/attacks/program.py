"""A command of Esper's, handed to the preloaded interpreter: ``esper.train …`` means ``python -m esper.train …``.

Run by a bare Python, under the names of the commands. It passes on its standard streams, environment, folder, limits
and signals, and ends as the process that does the work ends. With nothing but the standard library it starts at once.
"""

import json
import os
import resource
import signal
import socket
import sys

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
LIMITS = ("RLIMIT_FSIZE", "RLIMIT_AS", "RLIMIT_NOFILE", "RLIMIT_CPU")


def main() -> None:
    name = os.path.basename(sys.argv[0])
    words = sys.argv[1:]
    if name == "python":
        if words[:1] != ["-m"] or not words[1:] or not words[1].startswith("esper."):
            os.execv(os.environ["ESPER_REAL_PYTHON"], [os.environ["ESPER_REAL_PYTHON"], *words])
        name, words = words[1], words[2:]
    mask = os.umask(0)
    os.umask(mask)
    streams = [number for number in (0, 1, 2) if is_open(number)]
    order = {
        "module": name,
        "words": words,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "ignored": [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN],
        "umask": mask,
        "streams": streams,
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
        interpreter.connect(os.environ["ESPER_INTERPRETER"])
        socket.send_fds(interpreter, [json.dumps(order).encode()], streams)
        process = int(interpreter.recv(100))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in streams:  # so that a pipe closes when the process that does the work lets go of it
            os.dup2(nothing, number)
        for number in heard:
            os.kill(process, number)
        status = int(interpreter.recv(100))
    if os.WIFSIGNALED(status):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
