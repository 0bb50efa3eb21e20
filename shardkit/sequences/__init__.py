"""Documents of token ids as sequences of one length, for language models.

Text becomes ids in :mod:`shardkit.tokens`.
"""
