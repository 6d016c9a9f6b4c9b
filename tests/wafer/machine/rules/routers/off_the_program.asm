#! rule: over the own edge of a program a word leaves, and is gone
#! tiles: 0
#! route 0 0 0: R N
#! edges: 7
#! links 0 0: 0 0 0 1 0
.fabric sends=1 queue=2 color=0
.active 8
local 8:
  fabric r0 0 1
  const r1 7
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
