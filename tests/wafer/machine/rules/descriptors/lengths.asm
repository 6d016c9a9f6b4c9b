#! rule: the length is the first source's, then the second's, then the destination's
#! f32 0 0 a: 1 2 0 0 0 0
#! f32 0 0 b: 1 2 3 0 0 0
#! f32 0 0 c: 9 9 9 9 0 0
#! f32 0 0 d: 11 12 13 0 0 0
.data x f32 1 2 3 4 5 6
.space a 24
.space b 24
.space c 24
.space d 24
.active 8
local 8:
  memory r0 a 6          # longer than the source
  memory r1 x 2
  operate FMOVS dest=MEMORY src0=MEMORY at=r0
  memory r0 b 1          # shorter than the source: it goes on behind its end
  memory r1 x 3
  operate FMOVS dest=MEMORY src0=MEMORY at=r0
  memory r0 c 4          # a scalar has no length
  const r1 f32:9
  operate FMOVS dest=MEMORY src0=SCALAR at=r0
  memory r0 d 6          # nor has the first source; the second has
  const r1 f32:10
  memory r2 x 3
  operate FADDS dest=MEMORY src0=SCALAR src1=MEMORY at=r0
  return
