#! rule: a FIFO of two words buffers between two microthreads
#! stream 20: MEMCPYH2D_1
#! stream 21: MEMCPYD2H_1
#! send 20: 0x3F800000 0x40000000 0x40400000 0x40800000 0x40A00000 0x40C00000
#! receive 21 f32: -1 -2 -3 -4 -5 -6
#! receivable 21: == 0
.space log 32
.space buffer 8
.fifo address=32 bytes=8
.fabric queue=0
.fabric sends=1 queue=3 color=21
.queue in 0 color=20
.active 8 9
local 8:                 # in: into the FIFO of two words
  const r0 0
  fabric r1 0 6
  operate MOV32 dest=FIFO src0=FABRIC asynchronous=1 at=r0
  return
local 9:                 # out of it
  fabric r0 1 6
  const r1 0
  const r2 0
  const r3 6
  intrinsic.fifo_length -1 r2 r3
  operate FNEGS dest=FABRIC src0=FIFO asynchronous=1 at=r0
  return
