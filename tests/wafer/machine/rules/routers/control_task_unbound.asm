#! rule: a control wavelet that the CE sees must name a task that there is
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! run: FAULT
#! fault: PE (1, 0): a control wavelet of color 0 asks for control task 9
=== sender
.fabric sends=1 queue=2 color=0 control=1
.active 8
local 8:
  fabric r0 0 1
  const r1 0x90000
  operate MOV32 dest=FABRIC src0=SCALAR at=r0
  return
=== receiver
control 5:
  return
