"""From shards to samples."""
