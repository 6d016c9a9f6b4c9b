#! rule: a control task that there is not
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: asks for control task 5
=== sender
  fabric r0 2 1
  const r1 0x40050000
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
  return
=== receiver
  return
control 1:
  return
