"""Tars that others made: scanned once, indexed, and then read as if they were ours.

Our own tars are written by :mod:`shardkit.formats.webdataset`.
"""
