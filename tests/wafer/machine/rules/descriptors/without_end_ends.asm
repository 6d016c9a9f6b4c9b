#! rule: an operation without end ends at a control wavelet, says that its length did not end it, and activates
#! like: without_end
#! log 1 0: 0 9
#! f32 1 0 sum: 6
=== receiver
.fabric queue=2 control_ends=1 control_action=ACTIVATE control_target=9
