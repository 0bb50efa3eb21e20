"""Tables and lines of JSON, each row a sample: Parquet, and what Hugging Face ``datasets`` saved.

What becomes of each column, and its values: :mod:`shardkit.inputs.tables.column_fields`.
"""
