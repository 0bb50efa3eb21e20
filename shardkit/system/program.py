"""The program that this process runs."""

is_command_line = False
"""Set by the command ``shardkit`` as it begins: then no other code than ours runs in it."""
