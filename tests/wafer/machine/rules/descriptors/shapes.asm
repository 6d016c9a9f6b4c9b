#! rule: a shape goes through its last dimension first; the left half of three rows of four
#! i16 0 0 y: 0 1 4 5 8 9
.data x i16 0 1 2 3 4 5 6 7 8 9 10 11
.space y 12
.shape n0=1 n1=1 n2=3 n3=2 s2=4 s3=1
.active 8
local 8:
  memory r0 y 6
  const r1 0
  const r2 0
  dsd_set.shape r1 r1 r2
  operate MOV16 dest=MEMORY src0=SHAPED at=r0
  return
