"""What is done with a finished dataset: verify, compare, unpack, export, show, describe, stage.

Nothing here feeds training.
"""
