#! rule: a value from a queue without a color
#! arch: wse2 wse3
#! memory: 256
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! route 0 0 1: R E
#! route 1 0 1: W R
#! run: FAULT
#! fault: no color is bound to input queue 0
=== sender
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
local 8:
  return
=== receiver
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
local 8:
  fabric r0 2 1
  receive.u16 r1 r0
  return
