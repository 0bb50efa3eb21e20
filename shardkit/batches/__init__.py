"""One batch, from its number to its tensors: what a worker does, whoever the worker is.

Where it runs and how many run at once is decided in :mod:`shardkit.loading`.
"""
