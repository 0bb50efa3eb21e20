"""Files of arrays in which each row belongs to a sample: columns in ``.npy`` files, ``.npz``
and HDF5.

``row_columns`` opens files and says what a column is; ``row_corpus`` decides which columns are
fields of which split, lists the rows and reads them.
"""
