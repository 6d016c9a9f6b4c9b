#! rule: an operation alone that leaves the memory
#! arch: wse2 wse3
#! memory: 256
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! route 0 0 1: R E
#! route 1 0 1: W R
#! run: FAULT
#! fault: byte address 256 is outside of the 256 bytes
=== sender
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
local 8:
  memory r0 words 200
  memory r1 words 200
  const r2 1
  operate ADD16 dest=MEMORY src0=MEMORY src1=SCALAR at=r0
  return
=== receiver
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
local 8:
  return
