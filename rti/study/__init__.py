"""The study: every method on one task under one budget, and which claims hold there. launch/study.py runs it (docs/lab.md).

plan.py says which runs there are, runner.py runs what is missing, records.py reads what they left, statistics.py compares,
claims.py judges; tables.py, plots.py and page.py write it down. Only runner.py starts anything, and only records.py and page.py
touch files; the rest is arithmetic. Plain processes of launch/rti.py and launch/eval.py do the work.
"""
