#! rule: two wavelets of a color that arrive in one cycle are a fault
#! tiles: 0 -1 0
#! route 0 0 0: R E
#! route 2 0 0: R W
#! route 1 0 0: EW R
#! run: FAULT
#! fault: PE (1, 0): two wavelets of color 0 arrived in one cycle
.fabric sends=1 queue=2 color=0
.active 8
local 8:
  fabric r0 0 1
  const r1 7
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
