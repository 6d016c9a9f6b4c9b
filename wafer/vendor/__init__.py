"""The dialect of the Cerebras Model Zoo: run files of its releases, read and written."""
