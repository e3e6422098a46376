"""Follow a run in a terminal from what it writes into its folder, wherever that is mounted.

* ``follow``: reads what was appended to a file; ``progress``: what is known of the run.
* ``screen``: the view; ``cli``: the command and its loop.
"""
