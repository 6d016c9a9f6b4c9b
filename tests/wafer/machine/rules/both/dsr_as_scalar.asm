#! rule: a DSR as the scalar
#! arch: wse2 wse3
#! like: pair
#! run: QUIET
=== sender
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
  return
