"""The checkpoint format: its layout, its reader and writer, the NaN of pruned weights."""
