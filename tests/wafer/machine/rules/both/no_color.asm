#! rule: a value from a queue without a color
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: no color is bound to input queue 0
=== sender
  return
=== receiver
  fabric r0 2 1
  receive.u16 r1 r0
  return
