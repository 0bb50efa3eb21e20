"""Files of arrays in which each row belongs to a sample: columns in ``.npy`` files, ``.npz``,
``.safetensors``, HDF5 and MNIST's idx files.

``row_columns`` says what a column is, ``array_files`` and ``hdf5_rows`` open files, ``row_plan``
decides which columns are fields of which split, and ``row_corpus`` lists and reads them.
"""
