#! rule: a microthread goes before the task, one of low priority behind it; 60 words against 80 elements
#! each priority sent: -1 == / 0 <
#! arch: wse2 wse3
#! stream 21: MEMCPYD2H_1
#! run 100: LIMIT
#! receivable 21: {sent} 60
#! run: QUIET
#! receivable 21: == 60
.data x f32 1
.fabric sends=1 queue=1 color=21 priority={priority}
.active 8
local 8:
  fabric r0 0 60
  const r1 1
  operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
  memory r2 x 80 0
  memory r3 x 80 0
  const r4 f32:1
  operate FMULS dest=MEMORY src0=MEMORY src1=SCALAR at=r2
  return
