"""What the machine and its operating system offer: files, cores, memory, the page cache.

Nothing here knows what a sample or a dataset is.
"""
