#! rule: a full FIFO ends an operation that the task waits for; room in it activates the task that pushes
#! log 0 0: 1 0 10
.space log 32
.space buffer 8
.fifo address=32 bytes=8 full_ends=1 empty_ends=1 push_task=10 pop_task=11
.data x u32 1 2 3 4
.active 8
local 8:
  const r0 0
  memory r1 x 2
  operate MOV32 dest=FIFO src0=MEMORY at=r0 into=r9
  log r9
  const r0 0
  memory r1 x 2
  operate MOV32 dest=FIFO src0=MEMORY at=r0 into=r9     # full
  log r9
  memory r0 x 1
  const r1 0
  operate MOV32 dest=MEMORY src0=FIFO at=r0             # makes room: task 10
  return
local 10:
  note 10
  return
local 11:
  note 11
  return
