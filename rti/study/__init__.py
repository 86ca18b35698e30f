"""The study: every method on one task under one budget, and which claims hold there. launch/study.py runs it (docs/lab.md).

plan.py says which runs there are, runner.py runs what is missing, records.py reads what they left, statistics.py compares,
claims.py judges; tables.py, plots.py and page.py write it down, and command.py does it all in order. Only runner.py starts
anything; plan.py, claims.py, statistics.py, tables.py and page.py are arithmetic and touch no file. Plain processes of
launch/rti.py and launch/eval.py do the work.
"""
