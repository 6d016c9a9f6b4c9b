"""Jobs, running, queued and finished: the verbs of ``wafer jobs`` and ``csctl``.

Every ``wafer run`` is a job in one SQLite file of the user's. There is no server: each run waits
for its own turn, and the next reader of the file marks jobs whose process has exited.
"""
