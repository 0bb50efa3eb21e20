"""Python objects as inputs: datasets, lists, functions over inputs, and iterables."""
