"""What a packed dataset says about itself: the manifest, and the row index of each split.

It is made and read here; the shards that it tells of are not opened.
"""
