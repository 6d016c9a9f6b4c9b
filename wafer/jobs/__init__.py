"""Jobs: what runs, what waits, what has run; a local stand-in for the vendor's ``csctl``.

Every ``wafer run`` is a job in one SQLite file of the user's. There is no server: each run looks
for its own turn, and whoever reads the file first marks the jobs whose process is gone.
"""
