#! rule: FSCALES adds to the exponent, FNORMS leaves the significand
#! f32 0 0 y: 1.5 -3 0
#! f32 0 0 z: 1.5 -1.5 0
.data x f32 6.0 -0.375 0.0
.data by i16 -2 3 7
.space y 12
.space z 12
.active 8
local 8:
  memory r0 y 3
  memory r1 x 3
  memory r2 by 3
  operate FSCALES dest=MEMORY src0=MEMORY src1=MEMORY at=r0
  memory r0 z 3
  operate FNORMS dest=MEMORY src0=MEMORY at=r0
  return
