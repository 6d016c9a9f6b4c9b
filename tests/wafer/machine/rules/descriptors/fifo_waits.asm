#! rule: a task that waits for data in a FIFO is in the report
#! waits: PE (0, 0): local task 8 waits for data in FIFO 0
.space log 32
.space buffer 8
.fifo address=32 bytes=8 empty_ends=2
.active 8
local 8:
  memory r0 0 1
  const r1 0
  operate MOV32 dest=MEMORY src0=FIFO at=r0
  return
