#! rule: the handler of an output queue runs once its words have left; the neighbor takes them late
#! arch: wse3
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! run 600: LIMIT
#! log 0 0: 0 9
#! run: QUIET
#! log 0 0: 0 9 2
=== sender
.queue out 2 color=0
.fabric sends=1 queue=2
.active 8
local 8:
  fabric r0 0 13
  const r1 5
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 action=ACTIVATE target=9 at=r0
  return
local 9:
  const r0 2
  const r2 0x7F77  # which output queues are empty
  config_get r1 r2
  const r2 4  # queue 2
  and.u16 r1 r1 r2
  log r1
  intrinsic.queue_flush -1 r0
  note 9
  return
empty 2:
  note 2
  return
=== late
.queue in 4 color=0
.fabric queue=4
.active 8
local 8:
  const r0 400  # times two cycles
again:
  const r1 1
  sub.u16 r0 r0 r1
  jump_if again r0
  intrinsic.coordinate r3 r0
  fabric r1 0 13
  memory r0 0 13
  operate MOV32 dest=MEMORY src0=FABRIC at=r0
  return
