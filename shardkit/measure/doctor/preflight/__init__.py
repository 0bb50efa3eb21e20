"""What would slow or stop a training, said before it begins: checks of a machine and a dataset."""
