"""Reports of runs and sweeps: tables, CSV, plots and one HTML page, read from run folders alone.

* ``folders``: run and evaluation folders, however incomplete.
* ``grouping``: swept keys, and runs of the same configuration.
* ``numbers``: statistics over run seeds; ``tables``: CSV and terminal.
* ``figures``, ``timelines``, ``vector``: plots; ``page``: the HTML.
"""
