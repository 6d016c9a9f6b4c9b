.fabric queue=1 color=0
.queue in 1 color=0
.space sum 32
data 4:
  return
control 0:
  return
teardown 0:
  return
local 8:
  fabric r0 0 2
  receive.u32 r1 r0
  memory r2 0 2
  fabric r3 0 2
  operate FMOVS dest=MEMORY src0=FABRIC asynchronous=1 at=r2
  return
.active 8
function go:
  intrinsic.next_command -1 -1
  return
