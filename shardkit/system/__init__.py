"""What the machine and its operating system offer: files, cores, memory, the page cache.

Nothing here knows what a sample or a dataset is.
"""

is_command_line = False
"""Set by the command ``shardkit`` as it begins: then only our code runs here."""
