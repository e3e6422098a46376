"""Terminal view of a run, read from its folder, which may be mounted from another machine.

* ``follow``: reads appended lines of a file; ``progress``: the state of the run.
* ``screen``: the view; ``cli``: the command and its loop.
"""
