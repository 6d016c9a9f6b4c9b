# Every PE sends its numbers to the east and to the south and adds what comes; {west} and so on are
# the colors by parity of column and row. Delays come from coordinates.
.data own f32 1 2 3 4 5 6 7 8 9 10 11 12
.space sum 48
.queue in 2 color={west}
.queue in 3 color={north}
.fabric queue=2
.fabric queue=3 priority=2
.fabric sends=1 queue=4 color={east}
.fabric sends=1 queue=5 color={south}
.active 8
local 8:
  const r0 0
  intrinsic.coordinate r1 r0
  const r0 1
  intrinsic.coordinate r2 r0
  add.i16 r3 r1 r2
again:                            # (x + y) turns of a loop
  sub.i16 r3 r3 r0
  const r4 0
  gt.i16 r5 r3 r4
  jump_if again r5
  fabric r10 2 12
  memory r11 own 12
  operate FMOVS dest=FABRIC src0=MEMORY asynchronous=1 at=r10
  fabric r10 3 12
  operate FNEGS dest=FABRIC src0=MEMORY asynchronous=1 at=r10
  memory r10 sum 12
  memory r11 sum 12
  fabric r12 0 12
  operate FADDS dest=MEMORY src0=MEMORY src1=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r10
  return
local 9:
  memory r10 sum 12
  memory r11 sum 12
  fabric r12 1 12
  operate FSUBS dest=MEMORY src0=MEMORY src1=FABRIC asynchronous=1 action=ACTIVATE target=10 at=r10
  return
local 10:
  const r0 10
  intrinsic.coordinate r1 r0
  intrinsic.print -1 r1 u16
  intrinsic.print -1 r0 bool
  return
