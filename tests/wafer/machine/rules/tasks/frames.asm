#! rule: a recursive sum of 1 to 5 has a frame for each call, also by an address; a loop counts to 3
#! i16 0 0 out: 15 3 10
.active 8
.space out 8
local 8:
  const r1 5
  call sum r1            # its r0 is our r1
  const r3 0
  const r4 1
  const r5 3
again:
  add.i16 r3 r3 r4
  lt.i16 r6 r3 r5
  jump_if again r6
  const r7 out
  store.i16 r7 r1 0
  store.i16 r7 r3 2
  const r8 sum
  const r9 4
  call_at r8 r9
  store.i16 r7 r9 4
  return
sum:                     # of 1 to r0
  const r1 0
  eq.i16 r2 r0 r1
  jump_if done r2
  const r1 1
  sub.i16 r3 r0 r1
  call sum r3
  add.i16 r0 r0 r3
done:
  return
