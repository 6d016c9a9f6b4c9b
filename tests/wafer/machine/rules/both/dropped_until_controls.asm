#! rule: data dropped until two control wavelets have come
#! arch: wse2 wse3
#! memory: 256
#! tiles: 0 1
#! route 0 0 0: R E
#! route 1 0 0: W R
#! route 0 0 1: R E
#! route 1 0 1: W R
#! run: QUIET
=== sender
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
local 8:
  fabric r0 0 3
  memory r1 words 3
  fabric r2 2 1
  const r3 0x1000000      # NOCE: the CE does not see it
  const r4 0
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r4
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  send.u32 r2 r3
  send.u32 r2 r4
  operate MOV16 dest=FABRIC src0=MEMORY at=r0
  return
=== receiver
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
local 8:
  fabric r0 0 2
  operate DFILT src0=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
  return
local 9:
  fabric r2 0 2
  memory r1 into 2
  operate MOV16 dest=MEMORY src0=FABRIC at=r1
  return
