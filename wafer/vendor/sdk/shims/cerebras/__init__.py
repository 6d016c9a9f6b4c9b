"""What public programs import as ``cerebras``, backed by ``wafer.csl.host``."""
