"""The same samples through several readers, side by side."""
