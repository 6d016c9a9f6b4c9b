# Every table and most instructions.
.active 8
.fabric sends=1 queue=2 color=0
.fabric sends=1 queue=3 color=4 control=1
.fifo address=64 bytes=16 push_task=9 pop_task=10
.shape n2=2 n3=3 s2=3 s3=1
.queue out 2 color=0
.message 'a message'
function go:
  const r3 1
  activate r3
  intrinsic.next_command -1 -1
  return
local 8:
  const r0 0x2
  const r1 7
  load.i16 r2 r0 2
  store.i16 r0 r2 8
  move r0 r1 4
  memory r10 0 8
  memory r11 16 8
  memory r12 32 8
  operate FADDS dest=MEMORY src0=MEMORY src1=MEMORY at=r10
  const r13 0x20
  operate MOV16 dest=SHAPED src0=SCALAR at=r13
  load_dsr file=1 id=2 kind=MEMORY at=r10
  const r14 0x102
  const r15 40
  operate MOV16 dest=POINTER src0=DSR at=r15
  const r16 0
  const r17 5
  intrinsic.fifo_length -1 r16 r17
  operate MOV16 dest=FIFO src0=MEMORY asynchronous=1 thread=4 at=r16
  fabric r20 0 4
  memory r21 0 4
  operate MOV32 dest=FABRIC src0=MEMORY asynchronous=1 at=r20
  fabric r22 1 1
  const r23 0x400000
  send.u32 r22 r23
  const r5 0x7f20
  config_get r6 r5
  config_set r5 r6
  dsd_set.1 r10 r10 r17
  element.i16 r7 r10 r16
  call helper r24
  intrinsic.print -1 r17 5
  intrinsic.sqrt r8 r17 9
  block.local r17
  unblock.local r17
  return
helper:
  cast.f32 r1 r0 4
  div.i32 r2 r1 r1
  return
local 9:
  return
local 10:
  memory r0 0 2
  const r1 0
  operate MOV16 dest=MEMORY src0=FIFO at=r0
  return
