#! rule: a DSR as the scalar
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
  memory r0 words 2
  load_dsr file=2 id=1 kind=MEMORY saves_address=1 at=r0
  memory r1 words 2
  memory r2 words 2
  memory r3 words 2
  const r4 0x201
  operate MAC32 dest=MEMORY src0=MEMORY src1=MEMORY scalar=DSR at=r1
  dsr_get.2 r5 1
  const r6 words
  store.u16 r6 r5 16
  return
=== receiver
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
local 8:
  return
