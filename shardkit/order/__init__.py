"""Which row comes when, on which rank, and where a run stands: arithmetic alone.

No data is read here.
"""
