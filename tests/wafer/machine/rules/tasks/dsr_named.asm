#! rule: what an operation names counts where its fabric descriptor is not in a DSR
#! stream 21: MEMCPYD2H_1
#! log 0 0: 8 9
#! receive 21 f32: 1 2 3
.space log 32
.data x f32 1 2 3
.fabric sends=1 queue=3 color=21
.active 8
local 8:
  fabric r5 0 3
  load_dsr file=0 id=2 kind=FABRIC asynchronous=1 at=r5
  memory r1 x 3
  load_dsr file=1 id=2 kind=MEMORY at=r1
  const r6 0x102
  operate FMOVS dest=FABRIC src0=DSR asynchronous=1 action=ACTIVATE target=9 at=r5
  note 8
  return
local 9:
  note 9
  return
