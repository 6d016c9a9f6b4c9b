"""A grid of run files over seeds: its runs, what they cost, tables, a fit and pictures."""
