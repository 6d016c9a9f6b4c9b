#! rule: without a task for control wavelets an operation without end waits on
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! log 1 0:
#! waits: PE (1, 0): local task 8 waits for data of color 0 (receiver:
=== sender
.active 8
.fabric sends=1 queue=2 color=0
.fabric sends=1 queue=2 color=0 control=1
.data x f32 1 2 3
local 8:
  fabric r0 0 3
  memory r1 x 3
  operate FMOVS dest=FABRIC src0=MEMORY at=r0
  fabric r0 1 1
  const r1 0
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
=== receiver
.space log 64
.data sum f32 0
.fabric queue=2
.queue in 2 color=0
.active 8
local 8:
  const r0 sum
  const r1 sum
  fabric r2 0 0x7fff
  operate FADDS dest=POINTER src0=POINTER src1=FABRIC at=r0 into=r9
  log r9
  return
local 9:
  note 9
  return
