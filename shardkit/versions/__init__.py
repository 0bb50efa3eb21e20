"""Datasets that change: appended to, edited, put together, pruned.

:mod:`shardkit.versions.revision` is how a version takes the place of the last; what an edit keeps
is chosen in :mod:`shardkit.versions.choose`, and :mod:`shardkit.versions.own_rows` makes of rows of
a dataset what an index is made of.
"""
