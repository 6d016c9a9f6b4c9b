#! rule: no elements in one operand, which has a shape
#! each k operand: 0 dest / 1 src0 / 2 src1
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: an operand has an extent of 0 beside operands that have elements
=== sender
.shape n0=2 n2=0 n3=4 s3=1
  memory r0 words 4
  memory r1 words 4
  memory r2 words 4
  const r{k} 0
  dsd_set.shape r{k} r{k} r{k}
  operate ADD16 dest=MEMORY src0=MEMORY src1=MEMORY {operand}=SHAPED at=r0
  return
=== receiver
  return
