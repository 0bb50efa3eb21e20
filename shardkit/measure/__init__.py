"""Packing and reading seen from above: fair timing, benches, tuning, the doctor.

Nothing below imports it.
"""
