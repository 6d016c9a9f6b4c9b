// The numbers in a program's tables, as wafer/fabric/program/codes.py names them.
#pragma once
#include <cstdint>

namespace wafer {

enum Opcode { kWork, kMov, kAdd, kSub, kMul, kMac, kMax };
enum Dtype { kFloat32, kFloat16, kBfloat16, kUint32 };
enum Kind { kNone, kMem, kFabric, kConst, kArg };
enum Command { kNop, kSwitchAdv, kSwitchRst, kTeardown };
enum FilterKind { kUnfiltered, kCounter, kRange };
enum FaultKind { kNoFault, kSameCycleArrival, kUnboundControlTask };

constexpr uint8_t kRampPort = 16, kTorn = 255;

// A row of the code table, column by column.
struct Operand {
  int kind, base, stride, inner, outer, flags;
};
struct Op {
  int opcode, n, dtype, thread, launch, last, rate, activate, block, unblock;
  Operand dst, src[3];  // src0, src1, scalar
  int position_color, position, main_rank, thread_rank;
};

}  // namespace wafer
