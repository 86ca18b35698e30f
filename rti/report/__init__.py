"""The report: a run directory, or several side by side, as one HTML page that needs no network. `page.write` makes it.

Reads records alone; nothing here changes a run. May import rti.run, rti.chat, rti.algos and rti.evaluation.
"""
