"""Folders of HDF5 rows: read, written, checked."""
