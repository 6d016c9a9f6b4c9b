"""From rows to batches: sources, objectives, packing, the resumable pipeline."""
