"""Text to the HDF5 rows that the data processors read: ``wafer data preprocess``."""
