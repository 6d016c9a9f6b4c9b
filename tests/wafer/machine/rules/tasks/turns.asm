#! rule: ready tasks take turns by id, on from the last one and then from the lowest; activations coalesce
#! log 0 0: 12 20 9
.active 12
local 12:
  const r0 20
  activate r0
  activate r0
  const r0 9
  activate r0
  note 12
  return
local 9:
  note 9
  return
local 20:
  note 20
  return
