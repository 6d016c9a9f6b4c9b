"""The dialect of the Cerebras Model Zoo: its run files, tensors, data files and Python modules."""
