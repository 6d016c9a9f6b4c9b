#! rule: prints have the cycle and the PE; the task switch, the coordinate and four prints, 4 cycles each
#! tiles: 0 0
#! prints 18 0 0: x01.5
#! prints 18 1 0: x11.5
.active 8
local 8:
  const r0 0
  intrinsic.coordinate r1 r0
  const r2 120               # 'x'
  intrinsic.print -1 r2 bool
  intrinsic.print -1 r1 u16
  const r3 f32:1.5
  intrinsic.print -1 r3 f32
  const r2 10
  intrinsic.print -1 r2 bool
  return
