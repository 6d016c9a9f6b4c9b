#! rule: a pointer is read and written anew for each element
#! f32 0 0 sum: 110
#! f32 0 0 most: 4
.data sum f32 100
.data x f32 1 2 3 4
.data most f32 -5
.active 8
local 8:
  const r0 sum
  const r1 sum
  memory r2 x 4
  operate FADDS dest=POINTER src0=POINTER src1=MEMORY at=r0 into=r9
  const r0 most
  const r1 most
  operate FMAXS dest=POINTER src0=POINTER src1=MEMORY at=r0
  return
