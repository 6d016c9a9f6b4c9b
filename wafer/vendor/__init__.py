"""The dialect of the vendor (Cerebras): its run files, tensors, data files and Python modules."""
