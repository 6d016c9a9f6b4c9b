#! rule: wavelets with an index, and addresses by it
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
  fabric r0 0 3
  memory r1 words 3
  const r2 5
  operate MOV16 dest=FABRIC src0=MEMORY asynchronous=1 index=1 at=r0
  memory r3 words 4 1 1
  const r4 words
  const r5 2
  operate ADD16 dest=MEMORY src0=POINTER src1=SCALAR index=1 at=r3
  return
=== receiver
  memory r0 into 3 0 1
  fabric r1 0 3
  operate MOV16 dest=MEMORY src0=FABRIC at=r0
  return
