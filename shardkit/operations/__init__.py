"""What is done with a finished dataset: verify, compare, unpack, show, describe, stage.

Nothing here feeds training.
"""
