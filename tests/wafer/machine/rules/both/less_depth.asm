#! rule: no word is lost where a color gets a queue of less depth while words come
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
#! u16 1 0 into: 1 2 3 4 5 6 7 8 9 10 11 12
=== sender
.data many u16 1 2 3 4 5 6 7 8 9 10 11 12
  fabric r0 0 12
  memory r1 many 12
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  return
=== receiver
  const r0 0x7f60         # input queue 0: six words, or eight
  const r1 0x20
  config_set r0 r1
  wait.0 0 0 10
  const r0 0x7f64         # input queue 4: two words, or four
  config_set r0 r1
  memory r3 into 12
  fabric r4 2 12
  operate MOV16 dest=MEMORY src0=FABRIC at=r3
  return
