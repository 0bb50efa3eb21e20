"""Tables and lines of JSON, each row a sample: Parquet, and what Hugging Face ``datasets`` saved.

What becomes of each column is decided in :mod:`shardkit.inputs.tables.column_plan`, from names and
types alone; its values are made in :mod:`shardkit.inputs.tables.cells`.
"""
