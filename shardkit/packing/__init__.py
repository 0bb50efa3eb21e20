"""From small files to shards, resumably. It never imports torch.

What can be packed is in :mod:`shardkit.inputs`, how shards lie on disk in :mod:`shardkit.formats`.
:mod:`shardkit.packing.run` is a pack from beginning to end: from there all else is found.
"""
