"""Looking at packing and reading from above: fair timing, and the limits of the machine."""
