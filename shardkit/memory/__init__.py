"""Memory: mapped files, buffers that are used again, advice to the kernel, huge values in chunks.

Nothing here knows what the bytes mean.
"""
