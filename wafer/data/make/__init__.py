"""Small valid data sets for every data processor: ``wafer data make NAME DIR``."""

from wafer.data.make.sets import DATA_SETS, DataSet, make_data

__all__ = ["DATA_SETS", "DataSet", "make_data"]
