#! rule: a move reads all before it writes
#! u8 0 0 x: 1 2 1 2 3 4
.data x u8 1 2 3 4 5 6
.active 8
local 8:
  const r0 2
  const r1 0
  move r0 r1 4
  return
