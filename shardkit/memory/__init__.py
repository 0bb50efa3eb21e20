"""Memory: mapped files, rows gathered from them in one compiled call, buffers used again, advice to
the kernel, huge values in chunks, a cache.

Nothing here knows what the bytes mean.
"""
