#! rule: a wavelet must not leave over an edge of the wafer
#! tiles: 0
#! route 0 0 0: R N
#! edges: 8
#! run: FAULT
#! fault: PE (0, 0): a wavelet of color 0 was routed off the wafer's edge
.fabric sends=1 queue=2 color=0
.active 8
local 8:
  fabric r0 0 1
  const r1 7
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
