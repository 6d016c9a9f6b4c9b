"""Recordings, traces and pictures of runs, counts, reports on faults and on what waits."""
