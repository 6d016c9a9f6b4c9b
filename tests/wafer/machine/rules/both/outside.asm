#! rule: an operation alone that leaves the memory
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: byte address 256 is outside of the 256 bytes
=== sender
  memory r0 words 200
  memory r1 words 200
  const r2 1
  operate ADD16 dest=MEMORY src0=MEMORY src1=SCALAR at=r0
  return
=== receiver
  return
