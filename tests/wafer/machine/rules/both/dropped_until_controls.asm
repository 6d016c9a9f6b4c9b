#! rule: data dropped until two control wavelets have come
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
  fabric r0 0 3
  memory r1 words 3
  fabric r2 2 1
  const r3 0x1000000      # NOCE: the CE does not see it
  const r4 0
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r4
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r3
  send.u32 r2 r4
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  return
=== receiver
  fabric r0 0 2
  operate DFILT src0=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
  return
local 9:
  fabric r2 0 2
  memory r1 into 2
  operate MOV16 dest=MEMORY src0=FABRIC at=r1
  return
