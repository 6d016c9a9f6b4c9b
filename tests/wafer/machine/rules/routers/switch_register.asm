#! rule: the switch register shows and sets the position; the same by a pointer at twice its address
#! memory: 8
#! route 0 0 0: R R
#! switch 0 0 0: tx=E
#! u16 0 0 0: 0x551 0x2551
.active 8
.space out 8
local 8:
  const r0 0x7f40
  config_get r1 r0
  const r2 0
  store.u16 r2 r1 0
  const r3 0x2000      # position 1
  or.u16 r1 r1 r3
  config_set r0 r1
  load.u16 r4 r5 0
  const r5 0xfe80
  load.u16 r4 r5 0
  store.u16 r2 r4 2
  return
