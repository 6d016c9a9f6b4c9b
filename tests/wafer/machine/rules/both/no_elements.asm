#! rule: operands of shapes without elements alone
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
.shape n2=0 n3=4 s3=1
.shape n2=3 n3=0 s2=4
  const r0 0
  const r1 0
  const r2 1
  dsd_set.shape r0 r0 r0
  dsd_set.shape r1 r1 r2
  operate MOV16 dest=SHAPED src0=SHAPED at=r0
  memory r3 words 2
  const r4 9
  operate MOV16 dest=MEMORY src0=SCALAR at=r3
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
