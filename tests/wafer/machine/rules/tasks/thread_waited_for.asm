#! rule: a task waits for the microthread that its next operation needs; the report names both
#! route 0 0 0: R R
#! run: QUIET
#! waits: microthread 2 of local task 8 waits for room in output queue 2 (test.csl:13)
#! waits: local task 8 waits for microthread 2 to end its operation (test.csl:16)
#! waits: a task or operation that takes the wavelet of color 0 at the head of its queue
#! waits: the PE's queue to have room for color 0
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
