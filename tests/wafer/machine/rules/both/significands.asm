#! rule: significands and other exponents, without a full significand and beyond the range too
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
.data s u32 0x40C00000 0xBEC00000 0 0x00000007 0x7F7FFFFF 0x7F800000
.data h u16 0x4600 0xB600 0x8000 0x0003 0x7BFF 0xFC00
.data by i16 -2 3 7 -1 4 100
.data by_more i16 -148 -127 -30000 5 30000 -1
.space out 120
  memory r0 out 6
  memory r1 s 6
  operate FNORMS dest=MEMORY src0=MEMORY at=r0
  const r9 24
  add.u64 r0 r0 r9
  memory r1 s 6
  memory r2 by 6
  operate FSCALES dest=MEMORY src0=MEMORY src1=MEMORY at=r0
  add.u64 r0 r0 r9
  memory r1 s 6
  memory r2 by_more 6
  operate FSCALES dest=MEMORY src0=MEMORY src1=MEMORY at=r0
  add.u64 r0 r0 r9
  memory r1 h 6
  memory r2 by 6
  operate FNORMH dest=MEMORY src0=MEMORY  at=r0
  add.u64 r0 r0 r9
  memory r1 h 6
  memory r2 by 6
  operate FSCALEH dest=MEMORY src0=MEMORY src1=MEMORY at=r0
  return
=== receiver
  return
