"""The vendor's preprocessing files, of any release, as settings of ``wafer.data.preprocess``."""
