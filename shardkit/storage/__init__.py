"""The bytes of a dataset's files, wherever these lie: one seam, and what stands behind it.

Nothing above this opens, maps or slices a file of a shard or of a row index, and nothing here knows
what it holds.
"""
