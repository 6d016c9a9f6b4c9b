#! rule: a DSR keeps its descriptor and advances only if asked; a new base moves it
#! f32 0 0 y: 1 2 1 2 5 6
.data x f32 1 2 3 4 5 6
.space y 24
.active 8
local 8:
  memory r0 y 2
  load_dsr file=0 id=1 kind=MEMORY saves_address=1 at=r0
  memory r0 x 2
  load_dsr file=1 id=1 kind=MEMORY at=r0
  const r10 0x001         # dest 1
  const r11 0x101         # src0 1
  operate FMOVS dest=DSR src0=DSR at=r10
  operate FMOVS dest=DSR src0=DSR at=r10
  const r5 16
  dsr_base.1 0 1 r5       # src0 1 begins at x[4]
  operate FMOVS dest=DSR src0=DSR at=r10
  return
