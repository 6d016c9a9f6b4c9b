#! rule: words of 16 bits travel in the low half, with an index in the high one if asked
#! stream 21: MEMCPYD2H_1
#! receive 21 u32: 0x5FFFF 0x60002 0x453C00 0x463C00
.fabric sends=1 queue=3 color=21 indexed=5
.data x i16 -1 2
.active 8
local 8:
  fabric r0 0 2
  memory r1 x 2
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  fabric r0 0 2
  const r1 f16:1.0
  const r2 0x40
  operate FMOVH dest=FABRIC src0=SCALAR index=1 at=r0
  return
