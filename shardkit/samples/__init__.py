"""What a sample is, and how the value of a field is stored.

Nothing here opens a file.
"""
