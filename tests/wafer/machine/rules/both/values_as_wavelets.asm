#! rule: values as wavelets, to a PE that takes them late
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: local task 8: an output descriptor is read
=== sender
  const r0 0
  const r1 1
  const r2 20
  fabric r3 0 1
again:
  send.i16 r3 r0
  add.i16 r0 r0 r1
  lt.i16 r4 r0 r2
  jump_if again r4
  fabric r5 2 1
  const r6 0x1000000      # a control wavelet that the CE does not see
  send.u32 r5 r6
  const r6 0
  send.u32 r5 r6
  const r7 f32:-1.5
  send.f32 r3 r7
  fabric r8 9 1
  send.u32 r8 r0
  return
=== receiver
  wait.1 0 0 90
  const r0 0
  const r1 1
  const r2 20
  const r3 into
  fabric r4 0 1
again:
  receive.i16 r5 r4
  store.i16 r3 r5 0
  add.u16 r3 r3 r1
  add.u16 r3 r3 r1
  add.i16 r0 r0 r1
  lt.i16 r6 r0 r2
  jump_if again r6
  receive.f32 r7 r4
  store.f32 r3 r7 0
  receive.u32 r7 r4
  return
