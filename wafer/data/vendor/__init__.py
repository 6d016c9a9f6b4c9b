"""Preprocessing files of the vendor's releases from 2.3 on: read hooks, regions, row rules."""
