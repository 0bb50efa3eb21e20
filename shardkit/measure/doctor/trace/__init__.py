"""A trace of torch.profiler, read; and arithmetic against the peaks of devices."""
