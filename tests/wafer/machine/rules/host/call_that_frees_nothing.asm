#! rule: a function that never frees the stream stalls the calls behind it, and the report names it
#! launch 0 0 1 1: forgets
#! launch 0 0 1 1: add 1 1
#! run: QUIET
#! waiting: 1
#! waits: PE (0, 0): host waits for unblock_cmd_stream() after function forgets (test.csl:
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
