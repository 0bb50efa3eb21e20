"""Everything that can be packed: one seam, one file a kind of input, and the table of them all.

Here are the seam, folders of small files, and how a kind is detected; ``annotations``, ``records``,
``rows`` and ``tables`` within have the kinds that take more than a file, and ``objects`` has what
Python holds: datasets, iterators, functions over inputs. Adding one is a class derived from
:class:`shardkit.inputs.corpus.Input` and a line in :mod:`shardkit.inputs.detection`.
"""
