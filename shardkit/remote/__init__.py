"""Datasets behind a URL: fetched block by block into a cache on this machine, and read from there.

Everything here ends at the seam of :mod:`shardkit.storage.interface`: readers know of no network.
"""
