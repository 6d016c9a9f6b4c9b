#! rule: an index moves the descriptors that ask for it: every second element, from there on
#! f16 0 0 y: 3 5
.data x f16 0 1 2 3 4 5 6 7
.space y 4
.active 8
local 8:
  memory r0 y 2
  memory r1 x 2 2 1
  const r2 3
  operate FMOVH dest=MEMORY src0=MEMORY index=1 at=r0
  return
