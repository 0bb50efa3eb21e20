"""Files of others that hold many samples each: arrays by rows, TFRecord, LMDB, tars, token ids.

They are found in :mod:`shardkit.inputs.containers.find`. A packed dataset of ours, which
``convert`` reads, is one, too.
"""
