"""Which row comes when, on which rank, and where a loop stands: arithmetic alone.

No data is read here.
"""
