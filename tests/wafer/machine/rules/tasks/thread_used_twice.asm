#! rule: a microthread that still runs is not to be used
#! route 0 0 0: R R
#! run: FAULT
#! fault: test.csl:13: PE (0, 0), local task 8: microthread 2 still runs
.fabric sends=1 queue=2 color=0
.active 8
local 8:
  fabric r0 0 100
  const r1 7
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
  # again
  # by the same queue
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
  return
