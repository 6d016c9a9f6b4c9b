#! rule: wavelets with an index, and addresses by it
#! arch: wse2 wse3
#! memory: 256
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! route 0 0 1: R E
#! route 1 0 1: W R
#! run: QUIET
=== sender
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
local 8:
  fabric r0 0 3
  memory r1 words 3
  const r2 5
  operate MOV16 dest=FABRIC src0=MEMORY asynchronous=1 index=1 at=r0
  memory r3 words 4 1 1
  const r4 words
  const r5 2
  operate ADD16 dest=MEMORY src0=POINTER src1=SCALAR index=1 at=r3
  return
=== receiver
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
local 8:
  memory r0 into 3 0 1
  fabric r1 0 3
  operate MOV16 dest=MEMORY src0=FABRIC at=r0
  return
