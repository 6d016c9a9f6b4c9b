"""Verbs and modes that predict a run: costs, floor plans, shapes."""
