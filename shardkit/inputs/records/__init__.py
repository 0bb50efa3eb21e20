"""Third-party containers of records: TFRecord and LMDB files, tars, files of token ids; and packed
datasets of ours, which ``convert`` reads."""
