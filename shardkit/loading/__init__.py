"""Feeding a training loop: workers, batches, device."""
