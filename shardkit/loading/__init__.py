"""Feeding a training loop: workers, prefetching, the device, and the settings of all three.

What is in a batch is decided in :mod:`shardkit.batches`.
"""
