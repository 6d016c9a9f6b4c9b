#! rule: an asynchronous operation lets the task go on and activates another at its end
#! stream 20: MEMCPYH2D_1
#! stream 21: MEMCPYD2H_1
#! send 20: 0x3F800000 0x40000000 0x40400000 0x40800000
#! log 0 0: 8 9
#! receive 21 f32: -1 -2 -3 -4
#! receive 21 f32:
.fabric queue=0
.fabric sends=1 queue=3 color=21
.queue in 0 color=20
.active 8
local 8:
  fabric r0 1 4
  fabric r1 0 4
  operate FNEGS dest=FABRIC src0=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
  note 8
  return
local 9:
  note 9
  return
