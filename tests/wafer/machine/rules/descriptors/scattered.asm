#! rule: the index of a wavelet says where in the memory it goes
#! stream 20: MEMCPYH2D_1
#! send 20: 0x30007 0x00008 0x50009
#! u16 0 0 0: 0 0 8 0 0 7 0 9
.fabric queue=0
.queue in 0 color=20
.space y 4
.space z 12
.active 8
local 8:
  memory r0 z 3 0 1      # indexed, no step of its own
  fabric r1 0 3
  operate MOV16 dest=MEMORY src0=FABRIC at=r0
  return
