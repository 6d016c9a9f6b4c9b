#! rule: operands of shapes without elements alone
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
.shape n2=0 n3=4 s3=1
.shape n2=3 n3=0 s2=4
  const r0 0
  const r1 0
  const r2 1
  dsd_set.shape r0 r0 r0
  dsd_set.shape r1 r1 r2
  operate MOV16 dest=SHAPED src0=SHAPED at=r0
  memory r3 words 2
  const r4 9
  operate MOV16 dest=MEMORY src0=SCALAR at=r3
  return
=== receiver
  return
