"""Somebody's training script, watched from within: what each step waited for, written to a folder.

Nothing here imports more than the standard library, nor anything of shardkit: it runs in processes
of whoever is watched. What the records say is worked out in ``measure/doctor``.
"""
