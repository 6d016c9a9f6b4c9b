#! rule: words of a second color wait until the queue is bound to it (WSE-3; the vendor's topic 16)
#! arch: wse3
#! stream 18: MEMCPYH2D_1
#! stream 19: MEMCPYH2D_2
#! send 19: 2
#! run 1000: QUIET
#! log 0 0:
#! send 18: 1
#! run 1000: QUIET
#! log 0 0: 1 2
.queue in 2 color=18
.fabric queue=2
.active 8
local 8:
  fabric r0 0 1
  receive.u16 r1 r0
  log r1
  const r3 0x7f62           # input queue 2
  const r4 51
  config_set r3 r4
  receive.u16 r1 r0
  log r1
  return
