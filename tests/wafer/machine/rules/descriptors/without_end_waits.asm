#! rule: without a task for control wavelets an operation without end waits on
#! like: without_end
#! log 1 0:
#! waits: PE (1, 0): local task 8 waits for data of color 0 (receiver:
=== receiver
.fabric queue=2
