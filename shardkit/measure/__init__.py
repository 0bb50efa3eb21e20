"""Packing and reading seen from above: fair timing, benches, tuning, the limits of the machine.

Nothing below imports it.
"""
