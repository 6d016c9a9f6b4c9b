#! rule: the host's calls run one after another, each once the one before has freed the stream
#! tiles: 0 0 / 0 0
#! launch 0 0 2 2: add 2 -5
#! launch 0 0 2 2: late
#! launch 1 0 1 2: add 1 1
#! waiting: 4
#! run: READY
#! waiting: 0
#! log 0 1: 0xFFFD 9
#! log 1 1: 0xFFFD 9 2
.space log 32
function add:
  add.i16 r0 r0 r1
  log r0
  intrinsic.next_command -1 -1
  return
function forgets:
  return
function late:                  # frees the stream from another task
  const r0 9
  activate r0
  return
local 9:
  note 9
  intrinsic.next_command -1 -1
  return
