"""
The compatibility run: one short suite in several environments, `python -m tests.compat`.

`stage.py`, `cases.py` and `suite.py` run inside an environment, where only the wheel and pyspark
are installed; the other modules build the environments and start them.
"""
