#! rule: a teardown is forwarded and tears each router; what follows waits for its handler
#! tiles: 0 1 1 2
#! route 0 0 0: R E
#! route 1 0 0: W RE
#! route 2 0 0: W RE
#! route 3 0 0: W R
#! run 700: LIMIT
#! u32 1 0 got: 1 0
#! u32 2 0 got: 1 0
#! u32 3 0 got: 1 0
#! run: QUIET
#! u16 1 0 64: 16434
#! u16 2 0 64: 16434
#! u32 1 0 got: 1 2 3
#! u32 2 0 got: 1 0
#! u32 3 0 got: 1 0
# PE 3 has no handler: nothing goes in there any more, and PE 2 sends both ways or not at all.
=== sender
.fabric sends=1 queue=2 color=0
.fabric sends=1 queue=2 color=0 control=1
.active 8
local 8:
  fabric r0 0 1
  const r1 1
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  fabric r0 1 1
  const r1 0x9df9249
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  fabric r0 0 1
  const r1 2
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  fabric r0 0 1
  const r1 3
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
teardown 0:
  const r0 0
  intrinsic.teardown_exit -1 r0
  return
=== between
.space count 4
.space got 60
.space seen 4
.queue in 2 color=0
.active 8
local 8:
  return
data 0:
  const r1 0
  load.u16 r2 r1 0
  const r3 4
  mul.u16 r4 r2 r3
  store.u32 r4 r0 4
  const r3 1
  add.u16 r2 r2 r3
  store.u16 r1 r2 0
  return
teardown 0:
  const r5 0x7f20          # the color register of color 0
  config_get r6 r5
  const r1 0
  store.u16 r1 r6 64       # bit 14 says that it is torn down
  const r7 0x210           # tx RAMP, rx RAMP: no more from the west
  const r8 0x4000
  or.u16 r7 r7 r8
  config_set r5 r7         # still torn
  const r9 900
again:                     # a while later
  const r10 1
  sub.u16 r9 r9 r10
  jump_if again r9
  const r7 50          # tx RAMP and E, rx W
  config_set r5 r7
  return
=== last
.space count 4
.space got 64
data 0:
  const r1 0
  load.u16 r2 r1 0
  const r3 4
  mul.u16 r4 r2 r3
  store.u32 r4 r0 4
  const r3 1
  add.u16 r2 r2 r3
  store.u16 r1 r2 0
  return
