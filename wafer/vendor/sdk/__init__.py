"""Python modules that scripts of the vendor's SDK import, over ``wafer.csl.host``."""
