#! rule: a descriptor is a word of four fields; a new value leaves the old one as it is
#! i16 0 0 out: -7 -3 20 76
.active 8
.space out 16
local 8:
  memory r0 100 20 -3
  const r1 -7
  dsd_set.stride r2 r0 r1
  dsd_get.stride r3 r2
  dsd_get.stride r4 r0
  dsd_get.length r5 r2
  const r6 2
  element.f32 r7 r0 r6         # 100 - 3 * 4 * 2
  const r8 out
  store.i16 r8 r3 0
  store.i16 r8 r4 2
  store.i16 r8 r5 4
  store.i16 r8 r7 6
  return
