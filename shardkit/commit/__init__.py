"""Commits: what is written appears whole, or not at all, whenever its process is killed.

``shardkit.commit.work_folder`` has the law, and the only code that puts a dataset in its place.
"""
