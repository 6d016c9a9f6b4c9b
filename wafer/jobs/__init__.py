"""Jobs, running and finished: one file for each ``wafer run``, in a folder of the user's.

There is no server and no queue: a run holds a lock while it runs, and the next reader of the folder
marks jobs whose lock is free.
"""
