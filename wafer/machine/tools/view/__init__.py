"""The view of a run or a floor plan: one HTML page with its data in one block."""
