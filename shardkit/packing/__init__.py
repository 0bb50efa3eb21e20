"""From small files to shards. Never imports torch."""
