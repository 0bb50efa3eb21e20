"""The one read path of all formats: from rows to ranges of files, to bytes, to values.

Nothing here writes, orders or batches.
"""
