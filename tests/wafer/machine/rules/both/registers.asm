#! rule: registers
#! arch: wse2 wse3
#! like: pair
#! run: FAULT
#! fault: no configuration register at word address 0x7f00
=== sender
  const r0 0x7f69
  const r1 0x21
  config_set r0 r1
  config_get r2 r0
  const r3 0xfee2
  load.u16 r4 r3 0
  const r5 words
  store.u16 r5 r2 0
  store.u16 r5 r4 2
  const r6 0x7f73
  config_set r6 r1
  const r7 0x7f20
  config_get r8 r7
  store.u16 r5 r8 4
  const r9 0x7f70
  config_get r10 r9
  store.u16 r5 r10 6
  const r11 0x7f5b
  const r12 0x200
  config_set r11 r12
  fabric r13 1 4
  memory r14 words 4
  operate MOV16 dest=FABRIC src0=MEMORY asynchronous=1 at=r13
  return
=== receiver
  const r0 0x7f62
  const r1 0x21
  config_set r0 r1
  const r2 0x7f41
  config_get r3 r2
  const r4 into
  store.u16 r4 r3 32
  const r5 0xfe82
  store.u16 r5 r3 0
  memory r6 into 4
  fabric r7 0 4
  operate MOV16 dest=MEMORY src0=FABRIC at=r6
  config_get r8 r0
  store.u16 r4 r8 34
  const r9 0x7f00
  config_set r9 r1
  return
