#! rule: no elements in operand 2 of a shape
#! arch: wse2 wse3
#! memory: 256
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! route 0 0 1: R E
#! route 1 0 1: W R
#! run: FAULT
#! fault: an operand has an extent of 0 beside operands that have elements
=== sender
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
local 8:
.shape n0=2 n2=0 n3=4 s3=1
  memory r0 words 4
  memory r1 words 4
  memory r2 words 4
  const r2 0
  dsd_set.shape r2 r2 r2
  operate ADD16 dest=MEMORY src0=MEMORY src1=SHAPED at=r0
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
