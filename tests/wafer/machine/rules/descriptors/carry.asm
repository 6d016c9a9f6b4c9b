#! rule: a carry goes from element to element
#! u16 0 0 x: 0 0 4
.data x u16 0xffff 0xffff 1
.data y u16 1 0 2
.active 8
local 8:
  memory r0 x 3
  memory r1 x 3
  memory r2 y 3
  operate ADDC16 dest=MEMORY src0=MEMORY src1=MEMORY at=r0
  return
