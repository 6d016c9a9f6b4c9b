#! rule: an operation that a control wavelet ends leaves it to the next one, whose element it is
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
  fabric r0 0 3
  memory r1 words 3
  fabric r2 2 1
  const r3 0x1f004d       # no switch, no control task
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r3
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r3
  return
=== receiver
.fabric queue=2 color=0 control_ends=1 control_action=ACTIVATE control_target=9
  memory r0 into 16
  fabric r1 3 16
  operate MOV16 dest=MEMORY src0=FABRIC asynchronous=1 at=r0
  return
local 9:
  const r0 into
  memory r1 into 4
  fabric r2 0 4
  operate MOV16 dest=MEMORY src0=FABRIC at=r1
  fabric r4 0 1
  receive.u32 r5 r4
  store.u32 r0 r5 16
  return
