"""The fastest loader settings for a dataset on this machine."""
