#! rule: of two microthreads with words the one of higher priority takes every cycle until it is done
#! stream 21: MEMCPYD2H_1
#! stream 22: MEMCPYD2H_2
#! run 70: LIMIT
#! receivable 22: == 40
#! receivable 21: < 40
#! run: QUIET
#! receivable 21: == 40
.fabric sends=1 queue=1 color=21 priority=0
.fabric sends=1 queue=2 color=22
.active 8
local 8:
  fabric r0 0 40
  const r1 1
  fabric r2 1 40
  const r3 2
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r2
  return
