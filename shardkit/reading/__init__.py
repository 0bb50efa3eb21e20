"""Samples by row: a dataset, and several mixed into one.

Batches are made in :mod:`shardkit.batches`.
"""
