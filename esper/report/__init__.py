"""From run folders to one page: tables, CSV, plots, HTML. Reads what runs left behind, and nothing else.

* ``folders``: run and evaluation folders, however incomplete.
* ``grouping``: which keys were swept, and which runs are the same configuration.
* ``numbers``: statistics over run seeds; ``tables``: CSV and terminal.
* ``figures``, ``timelines``, ``vector``: plots; ``page``: the HTML.
"""
